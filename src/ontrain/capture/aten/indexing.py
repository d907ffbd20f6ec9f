"""Indexing by tensors, scattering, sorting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.capture.aten.places import from_start
from ontrain.capture.aten.registry import aten
from ontrain.capture.aten.selection import indexed_places, together
from ontrain.capture.aten.view import sliced
from ontrain.capture.context import AtenBuilder, Dim
from ontrain.graph import order_ties_as_torch
from ontrain.operators import Value
from ontrain.sizes import Size

__all__ = ["select_scatter", "slice_written"]

_INT64 = ir.DataType.INT64


@aten("index.Tensor", "_unsafe_index.Tensor")
def index(op: AtenBuilder, x: Value, indices: Sequence[Any]) -> Value:
    indexed, shapes = indexed_places(op, indices)
    adjacent = [axis for axis, _ in indexed] == list(range(indexed[0][0], indexed[0][0] + len(indexed)))
    for at, size in enumerate(together(shapes)):
        if isinstance(size, Size):
            op.symbols.equate(op.val.shape[at + (indexed[0][0] if adjacent else 0)], size)
    if len(indexed) == 1:
        axis, ids = indexed[0]
        return op.Gather(x, op.cast(ids, _INT64), axis=axis)
    x, axes = _indexed_first(op, x, [axis for axis, _ in indexed])
    shape = together(shapes)
    y = op.GatherND(x, _coordinates(op, [i for _, i in indexed], shape))
    adjacent = axes == list(range(axes[0], axes[0] + len(axes)))
    if not adjacent or axes[0] == 0:
        return y
    # The block of index dimensions goes where the indexed ones were.
    block, rest = len(shape), len(op.shape) - len(shape)
    head = list(range(block, block + axes[0]))
    return op.Transpose(y, perm=[*head, *range(block), *range(block + axes[0], block + rest)])


def _indexed_first(op: AtenBuilder, x: Value, axes: list[int]) -> tuple[Any, list[int]]:
    rank = len(op.input_shape(0))
    perm = [*axes, *(axis for axis in range(rank) if axis not in axes)]
    return (x if perm == sorted(perm) else op.Transpose(x, perm=perm)), axes


def _coordinates(op: AtenBuilder, indices: list[Any], shape: list[Dim]) -> Value:
    """Index tensors broadcast together and stacked along a new last axis."""
    target = op.sizes(shape)
    spread = [op.cast(i, _INT64) for i in indices]
    if len(spread) > 1:
        spread = [op.typed(op.Expand(i, target), shape) for i in spread]
    columns = [op.Unsqueeze(i, [-1]) for i in spread]
    return columns[0] if len(columns) == 1 else op.Concat(*columns, axis=-1)


@aten("index_put", "_unsafe_index_put", "_index_put_impl")
def index_put(
    op: AtenBuilder, x: Value, indices: Sequence[Any], values: Value, accumulate: bool = False, unsafe: bool = False
) -> Value:
    indexed = [(axis, i) for axis, i in enumerate(indices) if i is not None]
    value_shape = op.input_shape(2)
    if indexed[0][1].dtype == ir.DataType.BOOL:
        if len(indexed) > 1 or indexed[0][0] != 0 or any(size != 1 for size in value_shape):
            return _put(op, x, indices, values, value_shape, accumulate)
        extra = len(op.input_shape(0)) - len(indexed[0][1].shape)
        mask = op.Unsqueeze(indexed[0][1], list(range(-extra, 0))) if extra else indexed[0][1]
        value = op.Reshape(values, op.const(np.zeros(0, np.int64)))
        return op.Where(mask, x + value if accumulate else value, x)
    return _put(op, x, indices, values, value_shape, accumulate)


def _put(
    op: AtenBuilder, x: Value, indices: Sequence[Any], values: Value, value_shape: list[Dim], accumulate: bool
) -> Value:
    indexed, shapes = indexed_places(op, indices)
    rank = len(op.input_shape(0))
    axes = [axis for axis, _ in indexed]
    front, _ = _indexed_first(op, x, axes)
    shape = together(shapes)
    rest = [size for axis, size in enumerate(op.input_shape(0)) if axis not in axes]
    if axes[0] and axes == list(range(axes[0], axes[0] + len(axes))) and len(value_shape) > len(rest) - axes[0]:
        # The values have the block of index dimensions where the indexed ones are; bring it to the front.
        head, block = axes[0], len(shape)
        full = [*rest[:head], *shape, *rest[head:]]
        to_front = [*range(head, head + block), *range(head), *range(head + block, len(full))]
        values = op.Transpose(op.expand(values, full, value_shape), perm=to_front)
    else:
        values = op.expand(values, [*shape, *rest], value_shape)
    coordinates = _coordinates(op, [i for _, i in indexed], shape)
    y = op.ScatterND(front, coordinates, op.cast(values, op.dtype), reduction="add" if accumulate else None)
    order = [*axes, *(axis for axis in range(rank) if axis not in axes)]
    return y if order == sorted(order) else op.Transpose(y, perm=[order.index(axis) for axis in range(rank)])


@aten("gather")
def gather(op: AtenBuilder, x: Value, dim: int, index: Value, *, sparse_grad: bool = False) -> Value:
    have, want = op.input_shape(0), op.shape
    if not have:
        return op.expand(x, want, have)
    if not want:
        return op.Squeeze(op.GatherElements(x, op.Reshape(from_start(op, index), [1]), axis=0), [0])
    dim %= len(have)
    for axis, (a, b) in enumerate(zip(have, want, strict=True)):
        # torch's index may stop short on the other axes.
        x = x if a == b or axis == dim else sliced(op, x, axis, 0, b)
    return op.GatherElements(x, from_start(op, index), axis=dim)


@aten("take_along_dim")
def take_along_dim(op: AtenBuilder, x: Value, index: Value, dim: int | None = None) -> Value:
    """A GatherElements over axes that broadcast; with an axis negative indices count from its end."""
    if dim is None:
        return op.GatherElements(op.Reshape(x, [-1]), op.Reshape(from_start(op, index), [-1]), axis=0)
    shape = [op.input_shape(0), op.input_shape(1)]
    axis = dim % len(shape[0])
    full = [b if i == axis or b != 1 else a for i, (a, b) in enumerate(zip(*shape, strict=True))]
    source = [a if i == axis or a != 1 else b for i, (a, b) in enumerate(zip(*shape, strict=True))]
    places = op.cast(index, _INT64)
    return op.GatherElements(op.expand(x, source, shape[0]), op.expand(places, full, shape[1]), axis=axis)


@aten("index_select")
def index_select(op: AtenBuilder, x: Value, dim: int, index: Value) -> Value:
    if not op.input_shape(0):
        return op.Reshape(x, [1]) if op.shape else x
    return op.Gather(x, op.Reshape(from_start(op, index), [-1]), axis=dim)


@aten("slice_scatter")
def slice_scatter(
    op: AtenBuilder, x: Value, source: Value, dim: int = 0, start: Dim | None = None, end: Dim | None = None,
    step: int = 1,
) -> Value:  # fmt: skip
    return slice_written(op, x, source, op.input_shape(1), dim, start, step)


def slice_written(
    op: AtenBuilder, x: Value, source: Value, source_shape: list[Dim], dim: int, start: Dim | None, step: int
) -> Value:
    """Return the current node's first argument with a slice replaced: what lies before, the source, what follows."""
    shape = op.input_shape(0)
    dim %= len(shape)
    source = op.cast(source, op.dtype)
    if source_shape[dim] == shape[dim]:
        return source
    length = source_shape[dim]
    first = _from_start(op, 0 if start is None else start, shape[dim])
    if step != 1 or not op.symbols.is_planned(first):
        return _strided_scatter(op, x, source, dim, first, source_shape, step)
    last = first + length
    parts = [source]
    if first != 0:
        parts.insert(0, sliced(op, x, dim, 0, first))
    if last != shape[dim]:
        parts.append(sliced(op, x, dim, last, 2**63 - 1))
    return op.Concat(*parts, axis=dim) if len(parts) > 1 else source


def _from_start(op: AtenBuilder, place: Dim, size: Dim) -> Dim:
    """A place along an axis of that size, where a negative one counts from the end."""
    if isinstance(place, int):
        return place if place >= 0 else size + place if isinstance(size, Size) else max(size + place, 0)
    if op.symbols.is_natural(place):
        return place
    is_negative = Size.call("min", Size.call("max", -place, 0), 1)
    return Size.call("max", place + is_negative * size, 0)


def _strided_scatter(
    op: AtenBuilder, x: Value, source: Value, dim: int, first: Dim, shape: list[Dim], step: int
) -> Value:
    positions = op.counted(shape[dim]) * op.cast(step, _INT64) + op.scalar(first)
    column = op.Reshape(positions, [-1 if axis == dim else 1 for axis in range(len(shape))])
    spread = op.expand(column, shape, [shape[dim] if axis == dim else 1 for axis in range(len(shape))])
    return op.ScatterElements(x, spread, source, axis=dim)


@aten("select_scatter")
def select_scatter(op: AtenBuilder, x: Value, source: Value, dim: int, index: Dim) -> Value:
    """Return x with one place along an axis replaced."""
    shape = op.input_shape(0)
    dim %= len(shape)
    size = shape[dim]
    index = _from_start(op, index, size)
    following = index + 1
    parts = [op.Unsqueeze(op.cast(source, op.dtype), [dim])]
    if not op.symbols.is_planned(index):
        is_there = op.Equal(op.counted(size), op.scalar(index))
        return op.Where(op.Reshape(is_there, [-1 if axis == dim else 1 for axis in range(len(shape))]), *parts, x)
    if index != 0:
        parts.insert(0, sliced(op, x, dim, 0, index))
    if following != size:
        parts.append(sliced(op, x, dim, following, 2**63 - 1))
    return op.Concat(*parts, axis=dim) if len(parts) > 1 else parts[0]


@aten("topk")
def topk(
    op: AtenBuilder, x: Value, k: Dim, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Value, ...]:
    values, indices = _ordered(op, x, k, dim, largest, sorted)
    order_ties_as_torch(values)
    return values, indices


@aten("sort.default", "sort.stable")
def sort(
    op: AtenBuilder, x: Value, dim: int = -1, descending: bool = False, *, stable: bool | None = None
) -> tuple[Value, ...]:
    return _ordered(op, x, op.input_shape(0)[dim] if op.input_shape(0) else 1, dim, descending)


def _ordered(op: AtenBuilder, x: Value, k: Dim, dim: int, largest: bool, is_sorted: bool = True) -> tuple[Value, Value]:
    """The greatest or smallest k with their places; of equal ones those that come first, as torch.sort has them."""
    if not op.input_shape(0):
        return x, op.const(np.array(0, np.int64))
    count = op.symbols.emit(op, k) if isinstance(k, Size) else op.const(np.array([k], np.int64))
    values, indices = op.TopK(x, count, axis=dim, largest=int(largest), sorted=int(is_sorted), outputs=2)
    return values, indices


@aten("argsort.default", "argsort.stable")
def argsort(op: AtenBuilder, x: Value, dim: int = -1, descending: bool = False, *, stable: bool | None = None) -> Value:
    return sort(op, x, dim, descending)[1]
