"""Gathers and scatters. Every gather of rows flows back through one composite, EmbeddingGrad."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.operators.emit import Emitter, Value
from ontrain.operators.gradients import Adjoints, Op, gradient
from ontrain.operators.record import DOMAIN, WHEREVER, Axis, Indexes, Precision, Rows, Stock, View, define, record_of
from ontrain.operators.shapes import static_dims

__all__ = ["gather_adjoint", "is_from_start"]

Put = Callable[[Value, Value, str], Value]
"""put(into, updates, reduction): the first with the updates written to the places of the indices."""

define("Compress", settings=(1,), stock=Stock.COMPARED)
define(
    "FromStart",
    domain=DOMAIN,
    rows=Rows.ELEMENTWISE,
    precision=Precision.FOLLOWS,
    view=View.SAME,
    computes=False,
    keeps_values=True,
    zero_gradient="its numbers are indices",
)
define("NonZero", zero_gradient=WHEREVER, sized_by_values=True, stock=Stock.COMPARED)
define("Scatter", indexes=Indexes.ALONG_AXIS, no_gradient="the standard has withdrawn it")
define("TensorScatter", choices={"mode": ("linear", "circular")})
define(
    "Unique",
    no_gradient="its result has as many elements as there are distinct values, which no plan knows",
    sized_by_values=True,
    stock=Stock.COMPARED,
)


def is_from_start(indices: ir.Value) -> bool:
    """Whether indices are said not to count from the end, by a FromStart that they come from."""
    producer = indices.producer()
    while producer is not None and (record_of(producer).keeps_values or record_of(producer).is_view):
        if (producer.domain, producer.op_type) == (DOMAIN, "FromStart"):
            return True
        source = producer.inputs[0]
        producer = None if source is None else source.producer()
    return False


define("OneHot", settings=(1,), weightless=(2,), axis=Axis.ONE_MORE, stock=Stock.COMPARED)


@gradient("OneHot")
def one_hot(op: Op, dy: Value, ids: Value, depth: Value, values: Value, *, axis: int) -> Adjoints:
    """Only the two values take part: the one off gets dy where it stands, the one on the rest."""
    off = op.OneHot(ids, depth, op.const([1, 0], dy.dtype), axis=axis)
    lost, total = (op.ReduceSum(v, keepdims=0) for v in (dy * off, dy))
    return None, None, op.Concat(op.Reshape(lost, [1]), op.Reshape(total - lost, [1]), axis=0)


define("Embedding", domain=DOMAIN, rows=Rows.LOOKED_UP, indexes=Indexes.ROWS)


@gradient("Embedding", domain=DOMAIN)
def embedding(op: Op, dy: Value, weight: Value, ids: Value, *, padding_idx: int) -> Adjoints:
    """The rows of dy summed per id, without those of the padding row."""
    rows = static_dims(weight)[0]
    return op.composite("EmbeddingGrad", dy, ids, rows=rows, padding_idx=padding_idx), None


define("EmbeddingGrad", domain=DOMAIN)


@gradient("EmbeddingGrad", domain=DOMAIN)
def embedding_grad(op: Op, dw: Value, dy: Value, ids: Value, *, rows: int, padding_idx: int) -> Adjoints:
    """Linear in dy: the rows of dw by ids, zero where the id is the padding row."""
    picked = op.Gather(dw, ids, axis=0)
    if padding_idx < 0:
        return picked, None
    padding = op.Reshape(op.Equal(ids, padding_idx), [*static_dims(ids), *[1] * (len(static_dims(dw)) - 1)])
    return op.Where(padding, 0.0, picked), None


define("EmbeddingBag", domain=DOMAIN, indexes=Indexes.ROWS)
define("EmbeddingBagGrad", domain=DOMAIN)


@gradient("EmbeddingBag", domain=DOMAIN)
def embedding_bag(
    op: Op, dy: Value, weight: Value, ids: Value, starts: Value, shares: Value | None = None,
    *, mean: int, padding_idx: int,
) -> Any:  # fmt: skip
    """The composite EmbeddingBagGrad; through the body where the shares train."""
    if shares is not None and op.wanted[3]:
        return NotImplemented
    rows = static_dims(weight)[0]
    dweight = op.composite(
        "EmbeddingBagGrad", dy, ids, starts, shares, rows=rows, mean=mean, padding_idx=padding_idx
    )  # fmt: skip
    return dweight, None, None, None


define(
    "Gather",
    precision=Precision.FOLLOWS,
    computes=False,
    indexes=Indexes.ALONG_AXIS,
    evaluate=lambda a, x, i: np.take(x, i, axis=a.get("axis", 0)),
    rows=Rows.LOOKED_UP,
    stock=Stock.KERNEL,
)


@gradient("Gather")
def gather(op: Op, dy: Value, x: Value, ids: Value, *, axis: int) -> Adjoints:
    """The slices of dy summed per index."""
    size, axis = static_dims(x)[axis], axis % len(static_dims(x))
    known = ids.const_value.numpy() if ids.const_value is not None else None
    if known is None and not is_from_start(ids):
        ids = op.Where(op.Less(ids, 0), op.Add(ids, size), ids)
    elif known is not None and known.size == 1:
        return _one_slice(op, dy, int(known.reshape(())) % size, axis, static_dims(x)), None
    elif known is not None:
        ids = op.const(np.where(known < 0, known + size, known))
    return gather_adjoint(op, dy, ids, axis, size), None


def _one_slice(op: Op, dy: Value, index: int, axis: int, shape: tuple[int, ...]) -> Value:
    single = [1 if i == axis else d for i, d in enumerate(shape)]
    pads = [0] * (2 * len(shape))
    pads[axis], pads[len(shape) + axis] = index, shape[axis] - 1 - index
    return op.Pad(op.reshaped(dy, single), pads)


def gather_adjoint(op: Emitter, dy: Value, ids: Value, axis: int, size: int) -> Value:
    """Adjoint of Gather(x, ids, axis) for x with `size` entries along `axis` and ids of any rank, none negative."""
    if axis == 0:
        return op.composite("EmbeddingGrad", dy, ids, rows=size)
    q, rank = len(static_dims(ids)), len(static_dims(dy))
    front = [*range(axis, axis + q), *range(axis), *range(axis + q, rank)]
    rows = op.composite("EmbeddingGrad", op.Transpose(dy, perm=front), ids, rows=size)
    return op.Transpose(rows, perm=[*range(1, axis + 1), 0, *range(axis + 1, rank - q + 1)])


define("GatherND", precision=Precision.FOLLOWS, computes=False, indexes=Indexes.IN_TUPLES, stock=Stock.COMPARED)


@gradient("GatherND")
def gather_nd(op: Op, dy: Value, x: Value, ids: Value, *, batch_dims: int) -> Adjoints:
    """As Gather's, with the index tuples made numbers of rows."""
    shape = static_dims(x)
    depth = batch_dims + static_dims(ids)[-1]
    rows, numbers = math.prod(shape[:depth]), _row_numbers(op, shape, ids, batch_dims)
    flat = op.reshaped(dy, [math.prod(static_dims(ids)[:-1]), *shape[depth:]])
    return op.reshaped(op.composite("EmbeddingGrad", flat, numbers, rows=rows), shape), None


def _row_numbers(op: Op, shape: tuple[int, ...], ids: Value, batch_dims: int) -> Value:
    """Index tuples [batch…, …, k] into the axes after the batch, as row numbers of x in one flat list."""
    index_dims = static_dims(ids)
    sizes = np.array(shape[batch_dims : batch_dims + index_dims[-1]], np.int64)
    strides = np.array([math.prod(sizes[i + 1 :]) for i in range(len(sizes))], np.int64)
    positive = op.Where(op.Less(ids, 0), op.Add(ids, sizes), ids)
    numbers = op.ReduceSum(op.Mul(positive, strides), [-1], keepdims=0)
    if batch_dims:
        batch = np.arange(math.prod(shape[:batch_dims])) * int(sizes.prod())
        numbers = op.Add(numbers, batch.reshape([*shape[:batch_dims], *[1] * (len(index_dims) - 1 - batch_dims)]))
    return op.reshaped(numbers, [math.prod(index_dims[:-1])])


define("GatherElements", precision=Precision.FOLLOWS, computes=False, indexes=Indexes.ALONG_AXIS, stock=Stock.KERNEL)


@gradient("GatherElements")
def gather_elements(op: Op, dy: Value, x: Value, ids: Value, *, axis: int) -> Adjoints:
    """dy added into zeros at the indices."""
    zeros = op.Expand(op.const(0.0, dy.dtype), list(static_dims(x)))
    return op.ScatterElements(zeros, ids, dy, axis=axis, reduction="add"), None


define("ScatterElements", indexes=Indexes.ALONG_AXIS, stock=Stock.COMPARED)


@gradient("ScatterElements")
def scatter_elements(op: Op, dy: Value, x: Value, ids: Value, updates: Value, *, axis: int, reduction: str) -> Adjoints:
    """dy at the indices to the updates, by `_scattered`."""

    def put(into: Value, what: Value, how: str) -> Value:
        return op.ScatterElements(into, ids, what, axis=axis, reduction=how)

    return _scattered(op, dy, x, updates, reduction, put, lambda v: op.GatherElements(v, ids, axis=axis))


define("ScatterND", indexes=Indexes.IN_TUPLES, stock=Stock.COMPARED)


@gradient("ScatterND")
def scatter_nd(op: Op, dy: Value, x: Value, ids: Value, updates: Value, *, reduction: str) -> Adjoints:
    """As ScatterElements'; an index counts from the end where it is negative."""

    def put(into: Value, what: Value, how: str) -> Value:
        return op.ScatterND(into, ids, what, reduction=how)

    return _scattered(op, dy, x, updates, reduction, put, lambda v: op.GatherND(v, ids))


def _scattered(
    op: Op, dy: Value, x: Value, updates: Value, reduction: str, put: Put,
    read: Callable[[Value], Value],
) -> Adjoints:  # fmt: skip
    """Adjoints of (x, indices, updates) from writing to and reading from the places of the indices.

    none: what was overwritten takes nothing. add: all take dy. mul: dy times the product of all other factors.
    max, min: those that attain the extremum, in equal shares (torch.Tensor.scatter_reduce).
    """
    if reduction == "none":
        zeros = op.Expand(op.const(0.0, dy.dtype), list(static_dims(updates)))
        return put(dy, zeros, "none") if op.wanted[0] else None, None, read(dy) if op.wanted[2] else None
    if reduction == "add":
        return dy, None, read(dy) if op.wanted[2] else None
    if reduction == "mul":
        return _multiplied(op, dy, x, updates, put, read)
    y = op.outputs[0]
    hit, hits = (op.Cast(op.Equal(v, at), to=dy.dtype) for v, at in ((x, y), (updates, read(y))))
    share = dy / put(hit, hits, "add")
    return share * hit, None, read(share) * hits if op.wanted[2] else None


def _multiplied(op: Op, dy: Value, x: Value, updates: Value, put: Put, read: Callable[[Value], Value]) -> Adjoints:
    """Products without one factor: by division where no factor is zero, else from the product of those that are not."""
    ones = op.Expand(op.const(1.0, dy.dtype), list(static_dims(x)))
    dx = dy * put(ones, updates, "mul") if op.wanted[0] else None
    if not op.wanted[2]:
        return dx, None, None
    nought = op.Equal(updates, 0.0)
    safe = op.Where(nought, 1.0, updates)
    zeros = op.Expand(op.const(0.0, dy.dtype), list(static_dims(x)))
    count = put(zeros, op.Cast(nought, to=dy.dtype), "add")
    rest = read(dy * put(x, safe, "mul")) / safe
    alone = op.Equal(read(count), op.Cast(nought, to=dy.dtype))  # no factor but perhaps this one is zero
    return dx, None, op.Where(alone, rest, 0.0)
