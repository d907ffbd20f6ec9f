"""What planning looks at before anything is allocated: every size known, none beyond the machine."""

from __future__ import annotations

import math
from collections.abc import Iterable

import onnx_ir as ir

from ontrain.errors import GraphError
from ontrain.graph.source import describe, source_of
from ontrain.limits import TooLargeError
from ontrain.units import byte_text

__all__ = ["check_sizes", "nbytes"]


def nbytes(value: ir.Value) -> int | None:
    """Return the bytes that a value takes, None if its dtype or shape is not known, or if it holds texts."""
    if value.dtype in (None, ir.DataType.UNDEFINED, ir.DataType.STRING) or value.shape is None:
        return None
    dims = [d for d in value.shape if isinstance(d, int)]
    if len(dims) != len(value.shape):
        return None
    return math.ceil(math.prod(dims) * value.dtype.itemsize)


_WAY_OUT = (
    "compute sizes from shapes and constants alone, and mask values by Where instead of selecting them; or train the "
    "module that the graph comes from with ORTModule, which plans it in parts, or with "
    'ORTModule(model, breaks="allow"), which leaves such lines to PyTorch'
)


def check_sizes(model: ir.Model, limit: int) -> None:
    """Check a specialised graph: operands and results of each node have a size, and fit into memory together.

    Args:
        model: of concrete input shapes.
        limit: bytes that the machine has.

    Raises:
        GraphError: a size depends on the data; names the node.
        TooLargeError: a node needs more than `limit`; names the node.
    """
    for value in model.graph.inputs:
        if (nbytes(value) or 0) > limit:
            raise TooLargeError(
                f"input {value.name!r} has {byte_text(nbytes(value) or 0)}, there are {byte_text(limit)}",
                reason=f"its shape is {', '.join(str(d) for d in value.shape or ())}",
                way_out="feed a smaller batch; if the batch is small, the file is damaged",
            )
    outputs = set(model.graph.outputs)
    for node in model.graph:
        # The composites of loops hand tapes of unknown length to their own gradients.
        values = [v for v in node.outputs if v in outputs or any(use.node.domain == "" for use in v.uses())]
        for value in values:
            if nbytes(value) is None:
                raise GraphError(
                    f"the size of {value.name!r} is not known before the step runs",
                    node=describe(node),
                    source=source_of(node),
                    reason="it depends on the values of the data, or is no tensor; a plan has fixed sizes",
                    way_out=_WAY_OUT,
                )
        needed = _together((*(v for v in node.inputs if v is not None), *node.outputs))
        if needed > limit:
            raise TooLargeError(
                f"{node.op_type} needs {byte_text(needed)} at once, there are {byte_text(limit)}",
                node=describe(node),
                source=source_of(node),
                reason="its operands and results have that size for this batch",
                way_out="feed a smaller batch; if the batch is small, the file is damaged",
            )


def _together(values: Iterable[ir.Value]) -> int:
    return sum(nbytes(value) or 0 for value in set(values))
