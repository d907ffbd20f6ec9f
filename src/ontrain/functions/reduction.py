"""Extrema along an axis, with their places, and the gradient of products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.functions.registry import composite
from ontrain.graph import Builder, static_dims
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


def _place(inputs: list[Any], *, axis: int = 0, **_: object) -> list[tuple[ir.DataType, ir.Shape]]:
    return [(ir.DataType.INT64, ir.Shape([1 if i == axis else d for i, d in enumerate(inputs[0].shape)]))]


@composite("OrderPlace", infer=_place)
def order_place(op: Builder, x: Value, *, axis: int = 0, k: int = 1) -> Value:
    """The place of the k-th smallest element along an axis that counts from the first, int64, with the axis as one.

    Of equal elements the first that are enough count; a kernel may choose others of them.
    Source: torch.kthvalue, where k counts from 1.
    """
    _, places = op.TopK(x, op.const(np.array([k], np.int64)), axis=axis, largest=0, sorted=1, outputs=2)
    return op.Slice(places, [k - 1], [k], [axis])


@composite("MedianPlace", infer=_place)
def median_place(op: Builder, x: Value, *, axis: int = 0) -> Value:
    """The place of the lower middle along an axis, or of the first that is no number, int64, with the axis as one.

    Source: torch.median of a dim.
    """
    place = op.composite("OrderPlace", x, axis=axis, k=(static_dims(x)[axis] + 1) // 2)
    if not x.dtype.is_floating_point():
        return place
    absent = op.Cast(op.IsNaN(x), to=ir.DataType.INT64)
    first = op.ArgMax(absent, axis=axis, keepdims=1)
    return op.Where(op.Equal(op.GatherElements(absent, first, axis=axis), np.array(1)), first, place)


@composite("ReduceProdGrad", like=[1])
def reduce_prod_grad(op: Builder, dy: Value, x: Value, y: Value, *, axes: Sequence[int] = ()) -> Value:
    """dy times the product of all other elements along the axes, which is right where elements are zero.

    dy and the product y have the axes as ones.
    """
    shape = static_dims(x)
    order = [*(i for i in range(len(shape)) if i not in axes), *axes]
    n = math.prod(shape[a] for a in axes)
    rows = op.Reshape(op.Transpose(x, perm=order), [math.prod(shape) // max(n, 1), n])
    along = op.const(np.array(1))
    others = op.CumProd(rows, along, exclusive=1) * op.CumProd(rows, along, exclusive=1, reverse=1)
    back = [order.index(i) for i in range(len(shape))]
    return dy * op.Transpose(op.Reshape(others, [shape[i] for i in order]), perm=back)
