"""Extrema along an axis, with their places."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from ontrain.functions.registry import composite
from ontrain.graph import Builder
from ontrain.operators import Value

__all__: list[str] = []


def _types(
    inputs: list[Any], *, axis: int = 0, keepdims: int = 1, **_: object
) -> list[tuple[ir.DataType, ir.Shape]]:  # fmt: skip
    x = inputs[0]
    shape = [1 if i == axis else d for i, d in enumerate(x.shape) if keepdims or i != axis]
    return [(x.dtype, ir.Shape(shape)), (ir.DataType.INT64, ir.Shape(shape))]


@composite("Extremum", infer=_types)
def extremum(op: Builder, x: Value, *, axis: int = 0, keepdims: int = 1, largest: int = 1) -> tuple[Value, Value]:
    """The greatest or least element along an axis that counts from the first, and its place, int64.

    Of equal ones the first is chosen. Its gradient goes to the chosen one alone, unlike that of ReduceMax.
    Source: torch.max and torch.min of a dim.
    """
    ordered = op.Cast(x, to=ir.DataType.INT32) if x.dtype == ir.DataType.BOOL else x
    places = (op.ArgMax if largest else op.ArgMin)(ordered, axis=axis, keepdims=1)
    values = op.GatherElements(x, places, axis=axis)
    return (values, places) if keepdims else (op.Squeeze(values, [axis]), op.Squeeze(places, [axis]))
