"""Operators that the standard got after ontrain's opset, in those that it has."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from ontrain.functions.interpolation import constant_of
from ontrain.functions.registry import composite
from ontrain.graph import Builder, static_dims
from ontrain.operators import HALVES, Value

__all__: list[str] = []


@composite("CumProd", domain="")
def cumprod(op: Builder, x: Value, axis: Value, *, exclusive: int = 0, reverse: int = 0) -> Value:
    """Products of all elements up to each along `axis`, in log₂ n doublings; a division-free body is right at zeros.

    Source: https://onnx.ai/onnx/operators/onnx__CumProd.html
    """
    chosen = constant_of(axis, "its input axis")
    assert chosen is not None and x.shape is not None
    rank = len(x.shape)
    place = int(chosen.reshape(())) % rank
    n = x.shape[place]
    if not isinstance(n, int):
        return _masked_products(op, x, place, exclusive, reverse)

    y, span = _moved(op, x, place, 1, 1.0, reverse) if exclusive else x, 1
    while span < n:
        y, span = y * _moved(op, y, place, span, 1.0, reverse), 2 * span
    return op.Identity(y)


def _moved(op: Builder, values: Value, place: int, by: int, fill: float, reverse: int) -> Value:
    """The values `by` places further on, or nearer with `reverse`, and `fill` where none come to."""
    n, rank = static_dims(values)[place], len(static_dims(values))
    if by >= n:
        return op.Expand(op.const(fill, values.dtype), op.shape_of(values))
    rest = op.Slice(values, [by if reverse else 0], [n if reverse else n - by], [place])
    pads = [0] * (2 * rank)
    pads[place + (rank if reverse else 0)] = by
    return op.Pad(rest, pads, op.const(fill, values.dtype))


@composite("CumProdGrad", like=[1])
def cumprod_grad(op: Builder, dy: Value, x: Value, y: Value, *, axis: int = 0, reverse: int = 0) -> Value:
    """Adjoint of x from that of its products y up to each element, right where elements are zero.

    That is the product of what comes before an element, times s_k = dy_k + x_{k+1} · s_{k+1}, in log₂ n doublings.
    """
    before = op.CumProd(x, op.const(np.array(axis)), exclusive=1, reverse=reverse)
    following, share, span = _moved(op, x, axis, 1, 0.0, 1 - reverse), dy, 1
    while span < static_dims(x)[axis]:
        share = share + following * _moved(op, share, axis, span, 0.0, 1 - reverse)
        following, span = following * _moved(op, following, axis, span, 0.0, 1 - reverse), 2 * span
    return before * share


def _masked_products(op: Builder, x: Value, place: int, exclusive: int, reverse: int) -> Value:
    """Products along an axis whose length is known when the graph runs: of each row, ones for what it leaves out."""
    assert x.shape is not None
    rank = len(x.shape)
    perm = [*(axis for axis in range(rank) if axis != place), place]
    rows = op.Unsqueeze(op.Transpose(x, perm=perm), [-2])
    length = op.Gather(op.shape_of(x), op.const(np.array(place)))
    numbers = op.Range(op.const(np.array(0)), length, op.const(np.array(1)))
    row, column = op.Unsqueeze(numbers, [1]), op.Unsqueeze(numbers, [0])
    first, second = (row, column) if reverse else (column, row)
    enters = op.Less(first, second) if exclusive else op.LessOrEqual(first, second)
    products = op.ReduceProd(op.Where(enters, rows, op.const(1.0, x.dtype)), [-1], keepdims=0)
    return op.Transpose(products, perm=[perm.index(axis) for axis in range(rank)])


@composite("LinearAttention", domain="")
def linear_attention(
    op: Builder, query: Value, key: Value, value: Value, past: Value | None = None, decay: Value | None = None,
    beta: Value | None = None, *, q_num_heads: int = 1, kv_num_heads: int = 1, scale: float = 0.0,
    update_rule: str = "gated_delta", chunk_size: int = 64,
) -> tuple[Value, Value]:  # fmt: skip
    """The recurrence over the sequence, written out step by step; query, key, value are [B, T, heads · width].

    Source: https://onnx.ai/onnx/operators/onnx__LinearAttention.html
    """
    batch, steps, _ = static_dims(query)
    groups, kind = q_num_heads // kv_num_heads, query.dtype
    state_kind = kind if past is None else past.dtype
    if kind in HALVES:  # the sums are kept in single precision
        query, key, value = (op.Cast(v, to=ir.DataType.FLOAT) for v in (query, key, value))
        past, decay, beta = (None if v is None else op.Cast(v, to=ir.DataType.FLOAT) for v in (past, decay, beta))
    q, k, v = (
        op.Transpose(op.Reshape(x, [batch, steps, heads, -1]), perm=[1, 0, 2, 3])
        for x, heads in ((query, q_num_heads), (key, kv_num_heads), (value, kv_num_heads))
    )
    width, value_width = static_dims(k)[-1], static_dims(v)[-1]
    q = op.Reshape(q, [steps, batch, kv_num_heads, groups, width]) * (scale or width**-0.5)
    rates = _per_head(op, beta, batch, steps, kv_num_heads) if "delta" in update_rule else None
    gates = op.Exp(_per_head(op, decay, batch, steps, kv_num_heads)) if "gated" in update_rule else None
    zeros = [batch, kv_num_heads, width, value_width]
    state = past if past is not None else op.Expand(op.const(0.0, query.dtype), zeros)
    outputs = []
    for t in range(steps):
        column, row = op.Unsqueeze(_at(op, k, t), [3]), op.Unsqueeze(_at(op, v, t), [2])
        if gates is not None:
            state = state * op.Unsqueeze(_at(op, gates, t), [3])
        if rates is not None:
            row = (row - op.MatMul(op.Transpose(column, perm=[0, 1, 3, 2]), state)) * op.Unsqueeze(
                _at(op, rates, t), [3]
            )
        state = state + op.MatMul(column, row)
        outputs.append(op.Unsqueeze(op.MatMul(_at(op, q, t), state), [1]))
    y = op.Reshape(op.Concat(*outputs, axis=1), [batch, steps, q_num_heads * value_width])
    return op.Identity(op.Cast(y, to=kind)), op.Identity(op.Cast(state, to=state_kind))


def _at(op: Builder, x: Value, step: int) -> Value:
    return op.Gather(x, np.array(step), axis=0)


def _per_head(op: Builder, x: Value | None, batch: int, steps: int, heads: int) -> Value:
    """[B, T, 1], [B, T, heads] or [B, T, heads · width] as [T, B, 1 or heads, 1 or width]."""
    assert x is not None, "the rule of the update has this operand"
    apart = 1 if static_dims(x)[-1] == 1 else heads
    return op.Transpose(op.Reshape(x, [batch, steps, apart, -1]), perm=[1, 0, 2, 3])


@composite("TensorScatter", domain="")
def tensor_scatter(
    op: Builder, past: Value, update: Value, write_indices: Value | None = None, *, axis: int = -2, mode: str = "linear"
) -> Value:
    """past [B, …, L, …] with update [B, …, T, …] written at a place of its own along `axis` in each sample.

    Source: https://onnx.ai/onnx/operators/onnx__TensorScatter.html
    """
    shape = static_dims(past)
    place = axis % len(shape)
    batch, length, written = shape[0], shape[place], static_dims(update)[place]
    start = write_indices if write_indices is not None else op.const(np.zeros(batch, np.int64))
    ahead = op.Sub(np.arange(length), op.Unsqueeze(start, [1]))  # [B, L]
    if mode == "circular":
        ahead = op.Mod(ahead, length)
    fresh = op.And(op.GreaterOrEqual(ahead, 0), op.Less(ahead, written))
    rows = op.Add(op.Where(fresh, ahead, 0), (np.arange(batch) * written)[:, None])
    front = [0, place, *(i for i in range(1, len(shape)) if i != place)]
    rest = [shape[i] for i in front[2:]]
    flat = op.Reshape(op.Transpose(update, perm=front), [batch * written, math.prod(rest)])
    read = op.Reshape(op.Gather(flat, rows, axis=0), [batch, length, *rest])
    read = op.Transpose(read, perm=[int(i) for i in np.argsort(front)])
    return op.Where(
        op.Reshape(fresh, [batch, *(length if i == place else 1 for i in range(1, len(shape)))]), read, past
    )
