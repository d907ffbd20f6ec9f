"""Operators that compare elements with each other: order statistics, running extremes, counting against boundaries."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from ontrain.capture.aten.places import from_start
from ontrain.capture.aten.precision import in_single
from ontrain.capture.aten.registry import aten
from ontrain.capture.context import AtenBuilder, Dim
from ontrain.operators import DOMAIN, Value

__all__: list[str] = []

_INT64 = ir.DataType.INT64


def _size(op: AtenBuilder, dim: int) -> Dim:
    shape = op.input_shape(0)
    return shape[dim] if shape else 1


@aten("kthvalue")
def kthvalue(op: AtenBuilder, x: Value, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Value, Value]:
    """The k-th smallest, and its place."""
    return _chosen(op, x, "OrderPlace", dim, keepdim, k=k)


def _chosen(op: AtenBuilder, x: Value, operator: str, dim: int, keepdim: bool, **settings: int) -> tuple[Value, Value]:
    if not op.input_shape(0):
        return op.reshape(x, op.shape, []), op.expand(op.const(np.array(0, np.int64)), op.shape, [])
    axis = dim % len(op.input_shape(0))
    at = op.call(DOMAIN, operator, [x], {"axis": axis, **settings})
    value = op.GatherElements(x, at, axis=axis)
    return (value, at) if keepdim else (op.Squeeze(value, [axis]), op.Squeeze(at, [axis]))


def _fixed(op: AtenBuilder, size: Dim, what: str) -> int:
    if not isinstance(size, int):
        raise op.refuse(f"{what} over a dimension that varies", "its place in the order is a constant", "fix the size")
    return size


@aten("median.dim")
def median_dim(op: AtenBuilder, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    """The lower middle; the first that is no number, where there is one."""
    _fixed(op, _size(op, dim), "a median")
    return _chosen(op, x, "MedianPlace", dim, keepdim)


@aten("median.default")
def median(op: AtenBuilder, x: Value) -> Value:
    """The lower middle, or no number where there is one that is none; equal elements share the gradient, as torch's."""
    shape = op.input_shape(0)
    if not shape:
        return x
    count = _fixed(op, int(np.prod([_fixed(op, size, "a median") for size in shape])), "a median")
    flat = op.Reshape(x, [-1])
    middle = op.GatherElements(flat, op.composite("OrderPlace", flat, axis=0, k=(count + 1) // 2), axis=0)
    if not op.val.dtype.is_floating_point:
        return op.Squeeze(middle, [0])
    absent = op.IsNaN(op.composite("Detach", flat))
    none = op.Equal(op.ReduceMax(op.Cast(absent, to=_INT64), [0], keepdims=1), op.const(np.array(0, np.int64)))
    equal = op.Where(none, op.Equal(flat, op.composite("Detach", middle)), absent)
    chosen = op.Where(equal, flat, op.cast(0, x.dtype))
    return op.ReduceSum(chosen, [0], keepdims=0) / op.ReduceSum(op.Cast(equal, to=x.dtype), [0], keepdims=0)


@aten("mode")
def mode(op: AtenBuilder, x: Value, dim: int = -1, keepdim: bool = False) -> tuple[Value, Value]:
    """The least of the most frequent, at its last place; counted on [n, n] pairs."""
    if not op.input_shape(0):
        return x, op.const(np.array(0, np.int64))
    dim %= len(op.input_shape(0))
    size = _fixed(op, _size(op, dim), "a mode")
    fixed = op.composite("Detach", x) if x.dtype.is_floating_point() else x
    equal = op.Equal(op.Unsqueeze(fixed, [dim]), op.Unsqueeze(fixed, [dim + 1]))
    counts = op.ReduceSum(op.Cast(equal, to=_INT64), [dim], keepdims=0)
    frequent = op.Equal(counts, op.ReduceMax(counts, [dim], keepdims=1))
    # Among the frequent ones the place in ascending order decides, then the place in the row.
    _, order = op.TopK(fixed, op.const(np.array([size], np.int64)), axis=dim, largest=0, sorted=1, outputs=2)
    ordered = op.GatherElements(op.Cast(frequent, to=_INT64), order, axis=dim)
    least = op.GatherElements(fixed, op.GatherElements(order, op.ArgMax(ordered, axis=dim), axis=dim), axis=dim)
    at = op.ArgMax(op.Cast(op.Equal(fixed, least), to=_INT64), axis=dim, select_last_index=1)
    value = op.GatherElements(x, at, axis=dim)
    return (value, at) if keepdim else (op.Squeeze(value, [dim]), op.Squeeze(at, [dim]))


@aten("nanmedian.dim")
def nanmedian_dim(op: AtenBuilder, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    """The lower middle of those that are numbers; not a number where none is."""
    if not x.dtype.is_floating_point() or not op.input_shape(0):
        return median_dim(op, x, dim, keepdim)
    dim %= len(op.input_shape(0))
    size = op.const(np.array([_fixed(op, _size(op, dim), "a median")], np.int64))
    absent = op.IsNaN(x)
    last = op.Where(absent, op.cast(float("inf"), x.dtype), x)
    _, order = op.TopK(last, size, axis=dim, largest=0, sorted=1, outputs=2)
    numbers = op.ReduceSum(op.Cast(op.Not(absent), to=_INT64), [dim], keepdims=1)
    middle = op.Max(op.Div(numbers - op.const(np.array(1, np.int64)), op.const(np.array(2, np.int64))),
                    op.const(np.array(0, np.int64)))  # fmt: skip
    at = op.GatherElements(order, middle, axis=dim)
    value = op.GatherElements(x, at, axis=dim)
    return (value, at) if keepdim else (op.Squeeze(value, [dim]), op.Squeeze(at, [dim]))


@aten("nanmedian.default")
def nanmedian(op: AtenBuilder, x: Value) -> Value:
    """The lower middle of those that are numbers; its gradient is shared among equal elements, as torch's."""
    if not x.dtype.is_floating_point() or not op.input_shape(0):
        return median(op, x)
    count = _fixed(op, int(np.prod([_fixed(op, size, "a median") for size in op.input_shape(0)])), "a median")
    flat = op.Reshape(x, [-1])
    fixed = op.composite("Detach", flat)
    absent = op.IsNaN(fixed)
    last = op.Where(absent, op.cast(float("inf"), x.dtype), fixed)
    ordered, _ = op.TopK(last, op.const(np.array([count], np.int64)), axis=0, largest=0, sorted=1, outputs=2)
    numbers = op.ReduceSum(op.Cast(op.Not(absent), to=_INT64), [0], keepdims=1)
    middle = op.Max(op.Div(numbers - op.const(np.array(1, np.int64)), op.const(np.array(2, np.int64))),
                    op.const(np.array(0, np.int64)))  # fmt: skip
    equal = op.Equal(flat, op.Gather(ordered, middle, axis=0))
    chosen = op.ReduceSum(op.Where(equal, flat, op.cast(0, x.dtype)), [0], keepdims=0)
    value = chosen / op.ReduceSum(op.Cast(equal, to=x.dtype), [0], keepdims=0)
    none = op.Equal(op.Squeeze(numbers, [0]), op.const(np.array(0, np.int64)))
    return op.Where(none, op.cast(float("nan"), x.dtype), value)


@aten("cumprod")
@in_single
def cumprod(op: AtenBuilder, x: Value, dim: int, *, dtype: torch.dtype | None = None) -> Value:
    x = op.cast(x, op.dtype)
    if not op.input_shape(0):
        return x
    return op.CumProd(x, op.const(np.array(dim % len(op.input_shape(0)), np.int64)))


@aten("cummax", "cummin")
def cummax(op: AtenBuilder, x: Value, dim: int) -> tuple[Value, ...]:
    """Of equal elements the last is the one, as in torch."""
    if not op.input_shape(0):
        return x, op.const(np.array(0, np.int64))
    dim %= len(op.input_shape(0))
    largest = int("cummax" in str(op.node.target))
    if x.dtype == ir.DataType.BOOL:
        values, places = op.composite(
            "RunningExtremum", op.cast(x, ir.DataType.INT32), axis=dim, largest=largest, outputs=2
        )
        return op.cast(values, ir.DataType.BOOL), places
    return op.composite("RunningExtremum", x, axis=dim, largest=largest, outputs=2)


@aten("logcumsumexp")
def logcumsumexp(op: AtenBuilder, x: Value, dim: int) -> Value:
    x = op.cast(x, op.dtype)
    if not op.input_shape(0):
        return x
    return op.composite("LogCumSumExp", x, axis=dim % len(op.input_shape(0)))


def _below(op: AtenBuilder, boundaries: Value, values: Value | float, right: bool) -> Value:
    """How many boundaries [.., 1, K] lie before each value [.., M, 1], equal ones too with `right`.

    All of them lie before what is no number.
    """
    behind = op.Greater(boundaries, values) if right else op.GreaterOrEqual(boundaries, values)
    return op.cast(op.ReduceSum(op.Cast(op.Not(behind), to=_INT64), [-1], keepdims=0), op.dtype)


def _common(op: AtenBuilder, *values: Value) -> list[Any]:
    dtypes = {value.dtype for value in values}
    if len(dtypes) == 1:
        return list(values)
    wide = ir.DataType.DOUBLE if ir.DataType.DOUBLE in dtypes else ir.DataType.FLOAT
    return [op.cast(value, wide) for value in values]


@aten("bucketize.Tensor", "bucketize.Scalar")
def bucketize(
    op: AtenBuilder, x: Value | float, boundaries: Value, *, out_int32: bool = False, right: bool = False
) -> Value:
    x = x if isinstance(x, ir.Value) else op.cast(x, boundaries.dtype)
    boundaries, x = _common(op, boundaries, op.Unsqueeze(x, [-1]))
    return _below(op, boundaries, x, right)


@aten("searchsorted.Tensor", "searchsorted.Scalar")
def searchsorted(
    op: AtenBuilder, boundaries: Value, x: Value | float,
    *, out_int32: bool = False, right: bool = False, side: str | None = None, sorter: Value | None = None,
) -> Value:  # fmt: skip
    if sorter is not None:
        boundaries = op.GatherElements(boundaries, from_start(op, sorter), axis=-1)
    right = right or side == "right"
    x = x if isinstance(x, ir.Value) else op.cast(x, boundaries.dtype)
    rank = len(boundaries.shape)
    boundaries, x = _common(op, boundaries if rank == 1 else op.Unsqueeze(boundaries, [-2]), op.Unsqueeze(x, [-1]))
    return _below(op, boundaries, x, right)


@aten("histc")
def histc(op: AtenBuilder, x: Value, bins: int = 100, min: float = 0, max: float = 0) -> Value:
    x = op.Reshape(x, [-1])
    low, high = op.cast(min, x.dtype), op.cast(max, x.dtype)
    one = op.cast(1, x.dtype)
    if min == max:
        low, high = op.ReduceMin(x, keepdims=0), op.ReduceMax(x, keepdims=0)
        flat = op.Equal(low, high)
        low, high = op.Where(flat, low - one, low), op.Where(flat, high + one, high)
    place = op.Floor((x - low) * op.cast(bins, x.dtype) / (high - low))
    place = op.Where(op.Equal(x, high), op.cast(bins - 1, x.dtype), place)
    inside = op.And(op.GreaterOrEqual(x, low), op.LessOrEqual(x, high))
    place = op.Where(inside, place, op.cast(-1, x.dtype))
    bin_ = op.cast(op.counted(bins), x.dtype)
    hits = op.Cast(op.Equal(op.Unsqueeze(place, [0]), op.Unsqueeze(bin_, [1])), to=x.dtype)
    return op.ReduceSum(hits, [1], keepdims=0)


@aten("masked_scatter")
def masked_scatter(op: AtenBuilder, x: Value, mask: Value, source: Value) -> Value:
    """The k-th true place of the mask takes the k-th element of the source: a Gather by a running count."""
    shape = op.shape
    mask = op.expand(op.cast(mask, ir.DataType.BOOL), shape, op.input_shape(1))
    flat = op.Reshape(op.Cast(mask, to=_INT64), [-1])
    order = op.Max(op.CumSum(flat, op.const(np.array(0, np.int64))) - op.cast(1, _INT64), op.cast(0, _INT64))
    last = op.Sub(op.Size(source), op.cast(1, _INT64))
    elements = op.Reshape(source, [-1])
    if not all(isinstance(size, int) for size in op.input_shape(2)):  # it may be empty, under a mask that is false
        elements = op.Concat(elements, op.const(np.zeros(1), source.dtype), axis=0)
    taken = op.Gather(elements, op.Min(order, last), axis=0)
    x = op.expand(x, shape, op.input_shape(0))
    return op.Where(mask, op.reshape(taken, shape, [-1]), x)


@aten("nonzero_static")
def nonzero_static(op: AtenBuilder, x: Value, *, size: Dim, fill_value: int = -1) -> Value:
    """The first places that are not zero, as many as were asked for: a scatter by a running count."""
    shape = op.input_shape(0)
    if not shape:
        return op.Expand(op.cast(fill_value, _INT64), op.sizes(op.shape))
    held = op.Reshape(op.cast(x, ir.DataType.BOOL), [-1])
    before = op.CumSum(op.Cast(held, to=_INT64), op.const(np.array(0, np.int64))) - op.cast(1, _INT64)
    room = op.scalar(size)
    target = op.Where(op.And(held, op.Less(before, room)), before, room)  # the others go to a row that is cut off
    none = op.cast(-1, _INT64)
    rows = op.Expand(none, op.sizes([size + 1]))
    places = op.ScatterElements(rows, target, op.Range(0, op.Squeeze(op.Shape(held), [0]), 1), axis=0)
    places = op.Slice(places, [0], [-1], [0])
    filled, stride = op.Less(places, op.cast(0, _INT64)), op.cast(1, _INT64)
    columns: list[Value] = []
    for length in reversed(shape):
        whole = op.Max(op.scalar(length), op.cast(1, _INT64))
        columns.insert(0, op.Mod(op.Div(places, stride), whole))
        stride = stride * whole
    coordinates = op.Concat(*(op.Unsqueeze(column, [1]) for column in columns), axis=1)
    return op.typed(op.Where(op.Unsqueeze(filled, [1]), op.cast(fill_value, _INT64), coordinates), op.shape)
