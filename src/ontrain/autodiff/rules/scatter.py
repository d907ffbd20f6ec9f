"""Gathers and scatters. Every gather of rows flows back through one composite, EmbeddingGrad."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.autodiff.registry import Op, gradient, zero_gradient
from ontrain.graph import DOMAIN, static_dims

__all__ = ["gather_adjoint"]

zero_gradient("ArgMax", "ArgMin", "Unique")


@gradient("Embedding", domain=DOMAIN)
def embedding(op: Op, dy: ir.Value, weight: ir.Value, ids: ir.Value, *, padding_idx: int) -> Any:
    """The rows of dy summed per id, without those of the padding row."""
    rows = static_dims(weight)[0]
    return op.composite("EmbeddingGrad", dy, ids, rows=rows, padding_idx=padding_idx), None


@gradient("EmbeddingGrad", domain=DOMAIN)
def embedding_grad(op: Op, dw: ir.Value, dy: ir.Value, ids: ir.Value, *, rows: int, padding_idx: int) -> Any:
    """Linear in dy: the rows of dw by ids, zero where the id is the padding row."""
    picked = op.Gather(dw, ids, axis=0)
    if padding_idx < 0:
        return picked, None
    padding = op.Reshape(op.Equal(ids, padding_idx), [*static_dims(ids), *[1] * (len(static_dims(dw)) - 1)])
    return op.Where(padding, 0.0, picked), None


@gradient("Gather")
def gather(op: Op, dy: ir.Value, x: ir.Value, ids: ir.Value, *, axis: int) -> Any:
    """The slices of dy summed per index."""
    size, axis = static_dims(x)[axis], axis % len(static_dims(x))
    known = ids.const_value.numpy() if ids.const_value is not None else None
    if known is None:
        ids = op.Where(op.Less(ids, 0), op.Add(ids, size), ids)
    elif known.size == 1:
        return _one_slice(op, dy, int(known.reshape(())) % size, axis, static_dims(x)), None
    else:
        ids = op.const(np.where(known < 0, known + size, known))
    return gather_adjoint(op, dy, ids, axis, size), None


def _one_slice(op: Op, dy: ir.Value, index: int, axis: int, shape: tuple[int, ...]) -> Any:
    single = [1 if i == axis else d for i, d in enumerate(shape)]
    pads = [0] * (2 * len(shape))
    pads[axis], pads[len(shape) + axis] = index, shape[axis] - 1 - index
    return op.Pad(op.reshaped(dy, single), pads)


def gather_adjoint(op: Op, dy: ir.Value, ids: ir.Value, axis: int, size: int) -> Any:
    """Adjoint of Gather(x, ids, axis) for x with `size` entries along `axis` and ids of any rank, none negative."""
    if axis == 0:
        return op.composite("EmbeddingGrad", dy, ids, rows=size)
    q, rank = len(static_dims(ids)), len(static_dims(dy))
    front = [*range(axis, axis + q), *range(axis), *range(axis + q, rank)]
    rows = op.composite("EmbeddingGrad", op.Transpose(dy, perm=front), ids, rows=size)
    return op.Transpose(rows, perm=[*range(1, axis + 1), 0, *range(axis + 1, rank - q + 1)])


@gradient("GatherND")
def gather_nd(op: Op, dy: ir.Value, x: ir.Value, ids: ir.Value, *, batch_dims: int) -> Any:
    """As Gather's, with the index tuples made numbers of rows."""
    shape = static_dims(x)
    depth = batch_dims + static_dims(ids)[-1]
    rows, numbers = math.prod(shape[:depth]), _row_numbers(op, shape, ids, batch_dims)
    flat = op.reshaped(dy, [math.prod(static_dims(ids)[:-1]), *shape[depth:]])
    return op.reshaped(op.composite("EmbeddingGrad", flat, numbers, rows=rows), shape), None


def _row_numbers(op: Op, shape: tuple[int, ...], ids: ir.Value, batch_dims: int) -> Any:
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


@gradient("GatherElements")
def gather_elements(op: Op, dy: ir.Value, x: ir.Value, ids: ir.Value, *, axis: int) -> Any:
    """dy added into zeros at the indices."""
    zeros = op.Expand(op.const(0.0, dy.dtype), list(static_dims(x)))
    return op.ScatterElements(zeros, ids, dy, axis=axis, reduction="add"), None


@gradient("ScatterElements")
def scatter_elements(
    op: Op, dy: ir.Value, x: ir.Value, ids: ir.Value, updates: ir.Value, *, axis: int, reduction: str
) -> Any:
    """dy at the indices to the updates; the rest, or under "add" all of it, to x."""
    _check_reduction(op, reduction)
    dx = dy
    if reduction == "none" and op.wanted[0]:
        zeros = op.Expand(op.const(0.0, dy.dtype), list(static_dims(ids)))
        dx = op.ScatterElements(dy, ids, zeros, axis=axis)
    return dx, None, op.GatherElements(dy, ids, axis=axis) if op.wanted[2] else None


@gradient("ScatterND")
def scatter_nd(op: Op, dy: ir.Value, x: ir.Value, ids: ir.Value, updates: ir.Value, *, reduction: str) -> Any:
    """As ScatterElements'."""
    _check_reduction(op, reduction)
    dx = dy
    if reduction == "none" and op.wanted[0]:
        zeros = op.Expand(op.const(0.0, dy.dtype), list(static_dims(updates)))
        dx = op.ScatterND(dy, ids, zeros)
    return dx, None, op.GatherND(dy, ids) if op.wanted[2] else None


def _check_reduction(op: Op, reduction: str) -> None:
    if reduction not in ("none", "add"):
        raise op.refused(f"reduction {reduction!r} has no gradient rule", "scatter with reduction none or add")
