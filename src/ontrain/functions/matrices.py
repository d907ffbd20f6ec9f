"""Sizes of stacks of matrices, whose number may be known only when a graph runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ontrain.errors import GraphError
from ontrain.graph import Builder
from ontrain.operators import Value, dims

__all__ = ["inner_sizes", "is_empty", "shape_of_stack"]


def inner_sizes(x: Value, axes: int = 2) -> tuple[int, ...]:
    """Return the sizes of the last axes: two of matrices, one of vectors.

    Raises:
        GraphError: one of them is not known before the graph runs: loops over them are as long as they say.
    """
    sizes = tuple(size for size in dims(x)[-axes:] if isinstance(size, int))
    if len(sizes) < axes:
        raise GraphError(
            f"the size of the matrices in {x.name!r} is not known before the graph runs",
            reason=f"the shape is {list(dims(x))}, and a matrix is factorised in as many steps as it has columns",
            way_out="let only the axes before the last two vary",
        )
    return sizes


def is_empty(x: Value) -> bool:
    """Whether there is a size of zero, as far as sizes are known."""
    return 0 in dims(x)


def shape_of_stack(op: Builder, x: Value, *sizes: int, axes: int = 2) -> Value | Sequence[int]:
    """The axes of x but for the last ones, then these sizes."""
    lead = dims(x)[: len(dims(x)) - axes]
    known = [size for size in lead if isinstance(size, int)]
    if len(known) == len(lead):
        return [*known, *sizes]
    return op.Concat(op.Shape(x, end=-axes), op.const(np.array(sizes, np.int64)), axis=0)
