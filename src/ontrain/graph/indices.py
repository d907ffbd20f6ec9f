"""Indices that are constant, against the dimension that they index: kernels look at some of them only."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.errors import GraphError
from ontrain.graph.source import describe, source_of
from ontrain.operators import Indexes, record_of

__all__ = ["check_indices"]


def check_indices(node: ir.Node) -> None:
    """Check the constant indices of a standard operator that gathers or scatters; negative ones count from the end.

    Raises:
        GraphError: one lies outside of its dimension, or tuples are longer than the rank.
    """
    indexes = record_of(node).indexes
    if indexes is Indexes.NO:
        return
    x, indices = (*node.inputs, None, None)[:2]
    if x is None or x.shape is None or indices is None or indices.const_value is None:
        return
    array = indices.const_value.numpy()
    if not array.size or array.dtype.kind not in "iu":
        return
    if indexes is not Indexes.IN_TUPLES:
        axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 0
        if -len(x.shape) <= axis < len(x.shape):
            _check(node, array, x.shape[axis])
        return
    first = node.attributes["batch_dims"].as_int() if "batch_dims" in node.attributes else 0
    width = array.shape[-1] if array.ndim else 0
    if not 0 <= first <= len(x.shape) - width:
        raise GraphError(
            f"{node.op_type} has tuples of {width} indices for {len(x.shape)} dimensions",
            node=describe(node),
            source=source_of(node),
        )
    for place in range(width):
        _check(node, array[..., place], x.shape[first + place])


def _check(node: ir.Node, array: np.ndarray[Any, Any], size: int | ir.SymbolicDim) -> None:
    if not isinstance(size, int):
        return
    low, high = int(array.min()), int(array.max())
    if low < -size or high >= size:
        raise GraphError(
            f"{node.op_type} has the index {low if low < -size else high} for a dimension of size {size}",
            node=describe(node),
            source=source_of(node),
            way_out=f"indices go from {-size} to {size - 1}" if size else "nothing can be taken of an empty dimension",
        )
