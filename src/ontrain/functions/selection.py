"""Compress: a choice of slices that is known when the plan is made."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.functions.interpolation import constant_of
from ontrain.functions.registry import expansion
from ontrain.graph import Builder, register_inference
from ontrain.operators import Value

__all__: list[str] = []


@expansion("Compress")
def compress(op: Builder, x: Value, condition: Value, *, axis: int | None = None) -> Value:
    """The slices whose condition holds; the condition must be constant, or the result would have no fixed size."""
    chosen = constant_of(condition, "its condition")
    assert chosen is not None
    flat = op.Reshape(x, [-1]) if axis is None else x
    return op.Gather(flat, np.flatnonzero(chosen), axis=axis or 0)


def _compressed(node: ir.Node) -> list[tuple[ir.DataType, ir.Shape]]:
    """onnx's rule never knows the size; with a constant condition it is known."""
    x, condition = node.inputs[:2]
    assert x is not None and x.dtype is not None and x.shape is not None and condition is not None
    known = condition.const_value
    count = None if known is None else int(np.count_nonzero(known.numpy()))
    axis = node.attributes.get_int("axis", None)
    dims: list[Any] = [count] if axis is None else list(x.shape)
    dims[axis or 0] = count
    return [(x.dtype, ir.Shape(dims))]


register_inference("Compress", _compressed, "")
