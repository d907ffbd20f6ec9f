"""Results whose sizes follow from values: places of a mask, distinct values, repeats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.capture.aten.places import from_start
from ontrain.capture.aten.registry import aten
from ontrain.capture.aten.view import sliced
from ontrain.capture.context import AtenBuilder, Dim
from ontrain.graph import follows_from_random
from ontrain.operators import Value, each
from ontrain.sizes import Size

__all__ = ["indexed_places", "together"]

_INT64 = ir.DataType.INT64
_END = 2**63 - 1


def indexed_places(op: AtenBuilder, indices: Sequence[Any]) -> tuple[list[tuple[int, Any]], list[list[Dim]]]:
    """The axes that are indexed, with what indexes them, and its shapes; for a mask the places where it holds.

    Args:
        indices: of the current node, by axis, its second argument.
    """
    places: list[tuple[int, Any]] = []
    shapes: list[list[Dim]] = []
    own, axis = iter(op.listed_shapes(1)), 0
    for index in indices:
        if index is None:
            axis += 1
            continue
        shape = next(own)
        if index.dtype not in (ir.DataType.BOOL, ir.DataType.UINT8):
            places.append((axis, index))
            shapes.append(shape)
            axis += 1
            continue
        rank = len(shape)
        rows, count = _non_zero(op, index)
        for row in _rows(op, rows, rank, count):
            places.append((axis, row))
            shapes.append([count])
            axis += 1
    return places, shapes


def _non_zero(op: AtenBuilder, x: Value) -> tuple[Any, Size]:
    """Return the places of what is not zero as a matrix of a row for each axis, and how many there are."""
    if not op.symbols.by_values:
        raise _refusal(op, "as many places as a mask, or what is not zero, has")

    def places() -> tuple[Any, Size]:
        rows = op.NonZero(x if x.dtype == ir.DataType.BOOL else op.cast(x, ir.DataType.BOOL))
        return rows, op.symbols.count(rows, 1)

    rows_and_count: tuple[Any, Size] = op.memo(("nonzero", x), places)
    return rows_and_count


def _rows(op: AtenBuilder, rows: Value, rank: int, count: Size) -> list[Any]:
    parts = each(op.Split(rows, axis=0, num_outputs=rank, outputs=rank)) if rank > 1 else (rows,)
    return [op.typed(op.Squeeze(part, [0]), [count]) for part in parts]


def together(shapes: Sequence[Sequence[Dim]]) -> list[Dim]:
    """The shape to which index tensors of these shapes broadcast together."""
    rank = max(len(shape) for shape in shapes)
    padded: list[list[Dim]] = [[*[1] * (rank - len(shape)), *shape] for shape in shapes]
    return [next((size for size in sizes if size != 1), 1) for sizes in zip(*padded, strict=True)]


@aten("nonzero")
def nonzero(op: AtenBuilder, x: Value) -> Value:
    rows, count = _non_zero(op, x)
    op.symbols.equate(op.val.shape[0], count)
    return op.Transpose(rows, perm=[1, 0])


@aten("masked_select")
def masked_select(op: AtenBuilder, x: Value, mask: Value) -> Value:
    shapes = [op.input_shape(0), op.input_shape(1)]
    shape = together(shapes)
    x, mask = (op.expand(operand, shape, own) for operand, own in zip((x, mask), shapes, strict=True))
    rows, count = _non_zero(op, mask)
    op.symbols.equate(op.val.shape[0], count)
    return (
        op.GatherND(x, op.Transpose(rows, perm=[1, 0]))
        if shape
        else op.Gather(op.Reshape(x, [1]), op.Reshape(rows, [-1]))
    )


@aten("_unique2", "unique_dim", "unique_consecutive")
def unique(op: AtenBuilder, x: Value, *arguments: int, **_: object) -> tuple[Value, Value, Value]:
    """Values in order, the place of each element among them, and how often each occurs; see `torch.unique`."""
    if not op.symbols.by_values:
        raise _refusal(op, "as many values as are distinct")
    consecutive = "unique_consecutive" in str(op.node.target)
    if consecutive and op.argument(3, "dim") is not None and len(op.input_shape(0)) > 1:
        raise op.refuse("unique_consecutive along a dimension", "it compares whole slices", "use torch.unique")
    values, *others = _unique_consecutive(op, x) if consecutive else _unique(op, x, arguments)
    # What was not asked for is empty.
    inverse, counts = (
        op.const(np.zeros(0, np.int64)) if len(val.shape) == 1 and _is_zero(val.shape[0]) else own
        for val, own in zip(op.node.meta["val"][1:], others, strict=True)
    )
    return values, inverse, counts


def _is_zero(size: Any) -> bool:
    return isinstance(size, int) and size == 0


def _unique(op: AtenBuilder, x: Value, arguments: Sequence[int]) -> tuple[Value, Value, Value]:
    axis = arguments[0] if "unique_dim" in str(op.node.target) else None
    shape = op.input_shape(0)
    values, _places, inverse, counts = op.Unique(x, axis=axis, sorted=1, outputs=4)
    count = op.symbols.count(counts, 0)
    op.symbols.equate(op.val.shape[axis or 0], count)
    if axis is None:
        values, inverse = op.typed(values, [count]), op.typed(inverse, [math.prod(shape)])
    else:
        values, inverse = (
            op.typed(values, [*shape[:axis], count, *shape[axis + 1 :]]),
            op.typed(inverse, [shape[axis]]),
        )
    counts = op.typed(counts, [count])
    if axis is None and len(shape) != 1:
        inverse = op.Reshape(inverse, op.sizes(shape))
    return values, inverse, counts


def _unique_consecutive(op: AtenBuilder, x: Value) -> tuple[Value, Value, Value]:
    shape = op.input_shape(0)
    flat = x if len(shape) == 1 else op.Reshape(x, [-1])
    changes = op.Not(op.Equal(sliced(op, flat, 0, 1, _END), sliced(op, flat, 0, 0, -1)))
    first = op.Concat(op.typed(op.Expand(True, op.Min(op.Shape(flat), 1)), [1]), changes, axis=0)
    rows, count = _non_zero(op, first)
    op.symbols.equate(op.val.shape[0], count)
    starts = op.typed(op.Squeeze(rows, [0]), [count])
    ends = op.Concat(sliced(op, starts, 0, 1, _END), op.Shape(flat), axis=0)
    inverse = op.CumSum(op.cast(first, _INT64), 0) - 1
    return (
        op.Gather(flat, starts),
        (inverse if len(shape) == 1 else op.Reshape(inverse, op.sizes(shape))),
        ends - starts,
    )


@aten("where.default", "nonzero_numpy")
def where(op: AtenBuilder, condition: Value) -> list[Any]:
    """The places of what is not zero, a vector for each axis."""
    rows, count = _non_zero(op, condition)
    op.symbols.equate(op.val.shape[0], count)
    return _rows(op, rows, max(len(op.input_shape(0)), 1), count)


@aten("repeat_interleave.Tensor")
def repeat_interleave(op: AtenBuilder, repeats: Value, *, output_size: Dim | None = None) -> Value:
    """0 as often as the first number says, then 1, …"""
    if output_size is None:
        output_size = _counted(op, op.ReduceSum(op.cast(repeats, _INT64), keepdims=0))
    return op.cast(_repeated(op, op.cast(repeats, _INT64), op.input_shape(0)[0], output_size), op.dtype)


@aten("repeat_interleave.self_Tensor")
def repeat_rows(
    op: AtenBuilder, x: Value, repeats: Value, dim: int | None = None, *, output_size: Dim | None = None
) -> Value:
    """Each row as often as its number says; one number is for all rows."""
    shape = op.input_shape(0)
    if dim is None:
        x, shape, dim = op.Reshape(x, [-1]), [math.prod(shape)], 0
    dim %= len(shape)
    repeats = op.expand(op.cast(repeats, _INT64), [shape[dim]], op.input_shape(1))
    if output_size is None:
        output_size = _counted(op, op.ReduceSum(repeats, keepdims=0), dim)
    rows = _repeated(op, repeats, shape[dim], output_size)
    return op.typed(op.Gather(x, rows, axis=dim), [*shape[:dim], output_size, *shape[dim + 1 :]])


def _repeated(op: AtenBuilder, repeats: Value, count: Dim, output_size: Dim) -> Value:
    """0 as often as the first of `count` numbers says, then 1, …; a negative one is refused where it ends."""
    refused = op.Where(op.Less(repeats, 0), op.const(np.array(-(2**40), np.int64)), repeats)
    ends = from_start(op, op.CumSum(refused, 0))
    starts = _filled(op, 0, [output_size + 1])
    ones = op.typed(op.Expand(op.const(np.array([1], np.int64)), op.Shape(ends)), [count])
    steps = op.ScatterElements(starts, ends, ones, axis=0, reduction="add")
    return op.typed(op.CumSum(sliced(op, steps, 0, 0, -1), 0), [output_size])


@aten("_convert_indices_from_coo_to_csr")
def row_starts(op: AtenBuilder, rows: Value, size: Dim, *, out_int32: bool = False) -> Value:
    """Where each of `size` rows begins among sorted ones, and where the last ends."""
    shape = op.input_shape(0)
    ones = op.typed(op.Expand(op.const(np.array([1], np.int64)), op.Shape(rows)), shape)
    behind = op.cast(rows, _INT64) + op.const(np.array(1, np.int64))
    counts = op.ScatterElements(_filled(op, 0, [size + 1]), behind, ones, axis=0, reduction="add")
    return op.cast(op.typed(op.CumSum(counts, 0), [size + 1]), op.dtype)


@aten("bincount")
def bincount(op: AtenBuilder, x: Value, weights: Value | None = None, minlength: int = 0) -> Value:
    """How often each number occurs, or the sum of its weights."""
    x = from_start(op, x)
    most = op.ReduceMax(op.Concat(x, op.const(np.array([minlength - 1], np.int64)), axis=0), keepdims=0)
    count = _counted(op, most + 1)
    shape = op.input_shape(0)
    if weights is None:
        weights = op.typed(op.Expand(op.const(np.array([1], np.int64)), op.Shape(x)), shape)
    zeros = op.cast(_filled(op, 0, [count]), op.dtype)
    return op.ScatterElements(zeros, x, op.cast(weights, op.dtype), axis=0, reduction="add")


def _counted(op: AtenBuilder, number: Value, axis: int = 0) -> Size:
    """Return a number as the size of the current node's result along an axis."""
    if not op.symbols.by_values:
        raise _refusal(op, "as many elements as its numbers say")
    size = op.symbols.as_size(op, number)
    op.symbols.equate(op.val.shape[axis], size)
    return size


def _filled(op: AtenBuilder, number: int, shape: list[Dim]) -> Value:
    return op.typed(op.Expand(op.const(np.array(number, np.int64)), op.sizes(shape)), shape)


@aten("ontrain::decide")
def decide(op: AtenBuilder, x: Any, symbol: str, axis: int) -> Any:
    """Note the number that forward branches on: a size, or for axis -1 the only element.

    The size of `x[mask]` follows from the mask, even if x is drawn at random.
    """
    size = op.input_shape(0)[axis] if axis >= 0 else None
    if isinstance(size, Size) and follows_from_random(x):
        op.symbols.decided[symbol] = op.symbols.emit(op, size)
    else:
        op.symbols.decided[symbol] = op.Reshape(x, [1]) if axis < 0 else op.Shape(x, start=axis, end=axis + 1)
    return x


@aten("_local_scalar_dense", "item")
def item(op: AtenBuilder, *_: object, **__: object) -> Value:
    raise _refusal(op, "an element of a tensor as a number of Python's")


def _refusal(op: AtenBuilder, result: str) -> Exception:
    return op.refuse(
        f"{op.node.target} has a result whose size or value depends on the data: {result}",
        "the step of a trainer, or a file, has the sizes that follow from the shapes of its inputs",
        "train the module in a loop of your own with ORTModule, which learns such sizes as it runs; or use torch.where "
        "or masking, and for a loss over chosen rows ignore_index",
    )  # fmt: skip
