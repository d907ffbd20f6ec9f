"""Dtypes and shapes of values."""

from __future__ import annotations

import onnx_ir as ir

from ontrain.errors import GraphError

__all__ = ["dims", "is_float", "static_dims"]


def is_float(value: ir.Value) -> bool:
    """Whether a value has a floating-point dtype."""
    return value.dtype is not None and value.dtype.is_floating_point()


def dims(value: ir.Value) -> tuple[int | ir.SymbolicDim, ...]:
    """Return the shape of a value whose rank is known.

    Raises:
        GraphError: it is not.
    """
    if value.shape is None:
        raise GraphError(
            f"the rank of {value.name!r} is not known",
            reason="what makes it gives no dense tensor, or a shape that depends on the data",
        )
    return tuple(value.shape)


def static_dims(value: ir.Value) -> tuple[int, ...]:
    """Return the shape of a value all of whose dimensions are numbers.

    Raises:
        GraphError: one depends on the data.
    """
    shape = dims(value)
    if not all(isinstance(d, int) for d in shape):
        raise GraphError(
            f"the size of {value.name!r} is not known before the graph runs",
            reason=f"its shape is {', '.join(str(d) for d in shape)}: it depends on the data",
        )
    return tuple(d for d in shape if isinstance(d, int))
