"""onnxruntime's attention with the projection inside, and rotary positions, in standard operators and our own.

Source: onnxruntime, docs/ContribOperators.md; where it is silent, what the CPU kernels do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.functions.contributed import MICROSOFT
from ontrain.functions.contributed_heads import (
    HIDDEN,
    ahead,
    apart,
    attended,
    mask_bias,
    quotient,
    refuse,
    summed,
    together,
    total,
)
from ontrain.functions.contributed_types import Types
from ontrain.functions.registry import composite
from ontrain.graph import Builder, static_dims
from ontrain.operators import Value

__all__: list[str] = []


def _attention_types(
    inputs: Sequence[Any], *, num_heads: int = 1, qkv_hidden_sizes: Sequence[int] = (), **_: object
) -> Types:
    x, weights = inputs[:2]
    batch, length, _ = x.shape
    width = qkv_hidden_sizes[2] if qkv_hidden_sizes else quotient(weights.shape[1], 3)
    keys = qkv_hidden_sizes[1] if qkv_hidden_sizes else width
    past = inputs[4] if len(inputs) > 4 else None
    whole = length if past is None else total(past.shape[3], length)
    present = ir.Shape([2, batch, num_heads, whole, quotient(keys, num_heads)])
    return [(x.dtype, ir.Shape([batch, length, width])), (x.dtype, present)]


@composite("Attention", domain=MICROSOFT, infer=_attention_types)
def attention(
    op: Builder, x: Value, weights: Value, bias: Value | None = None, mask: Value | None = None,
    past: Value | None = None, attention_bias: Value | None = None, past_length: Value | None = None, *,
    num_heads: int = 1, scale: float = 0.0, mask_filter_value: float = HIDDEN, do_rotary: int = 0,
    past_present_share_buffer: int = 0, qkv_hidden_sizes: Sequence[int] = (), unidirectional: int = 0,
    rotary_embedding_dim: int = 0,
) -> tuple[Value, Value | None]:  # fmt: skip
    """Projection to queries, keys and values by one matrix, and attention; also keys and values with the past ones."""
    if do_rotary or past_present_share_buffer or past_length is not None:
        raise refuse("attention with rotary positions, or with a buffer shared by past and present")
    joined = op.MatMul(x, weights)
    return _projected_attention(
        op, joined if bias is None else joined + bias, mask, past, attention_bias, num_heads, scale, mask_filter_value,
        list(qkv_hidden_sizes), unidirectional,
    )  # fmt: skip


def _projected_attention(
    op: Builder, joined: Value, mask: Value | None, past: Value | None, attention_bias: Value | None, heads: int,
    scale: float, hidden: float, sizes: list[int], unidirectional: int,
) -> tuple[Value, Value | None]:  # fmt: skip
    batch, queries, width = static_dims(joined)
    q, k, v = (apart(op, part, heads) for part in op.Split(joined, sizes or [width // 3] * 3, axis=-1, outputs=3))
    before = 0
    if past is not None:
        before = static_dims(past)[3]
        k, v = (op.Concat(op.Gather(past, np.array(i), axis=0), new, axis=2) for i, new in enumerate((k, v)))
    keys, bias = before + queries, attention_bias
    if mask is not None:
        shape = static_dims(mask)
        if len(shape) == 1 and shape[0] == 2 * batch and batch > 0:
            bias = summed(bias, _between(op, mask, batch, keys, hidden, joined.dtype))
        elif len(shape) == 1 and shape[0] != batch:
            raise refuse("a mask of cumulated lengths")
        else:
            bias = summed(bias, mask_bias(op, mask, queries, keys, before, hidden, joined.dtype))
    if unidirectional and queries > 1:
        bias = summed(bias, ahead(op, before, queries, keys, joined.dtype))
    alike = static_dims(k) == static_dims(v)  # else they cannot be handed on as one
    present = op.Concat(op.Unsqueeze(k, [0]), op.Unsqueeze(v, [0]), axis=0) if alike else None
    return together(op, attended(op, q, k, v, bias, scale)), present


def _between(op: Builder, mask: Value, batch: int, keys: int, hidden: float, dtype: ir.DataType) -> Value:
    """For each sequence the place behind its last key, and then for each the place of its first."""
    ends, starts = (op.Unsqueeze(op.Slice(mask, [i * batch], [(i + 1) * batch], [0]), [1]) for i in range(2))
    places = op.const(np.arange(keys), ir.DataType.INT32)
    seen = op.And(op.Less(places, ends), op.GreaterOrEqual(places, starts))
    return op.Where(op.Unsqueeze(seen, [1, 2]), op.const(0.0, dtype), op.const(hidden, dtype))


def _quantised_attention_types(inputs: Sequence[Any], **a: Any) -> Types:
    past = [*inputs, None, None, None, None][8]
    like = ir.Value(name="x", type=ir.TensorType(inputs[3].dtype), shape=inputs[0].shape)
    return _attention_types([like, inputs[1], None, None, past], **a)


@composite("QAttention", domain=MICROSOFT, infer=_quantised_attention_types)
def quantised_attention(
    op: Builder, x: Value, weights: Value, bias: Value, x_scale: Value, w_scale: Value, mask: Value | None = None,
    x_zero: Value | None = None, w_zero: Value | None = None, past: Value | None = None, *, num_heads: int = 1,
    scale: float = 0.0, mask_filter_value: float = HIDDEN, do_rotary: int = 0, past_present_share_buffer: int = 0,
    unidirectional: int = 0,
) -> tuple[Value, Value | None]:  # fmt: skip
    """Attention whose projection is a product of whole numbers."""
    if do_rotary or past_present_share_buffer:
        raise refuse("attention with rotary positions, or with a buffer shared by past and present")
    operands = [x, weights, x_scale, w_scale, x_zero, w_zero, bias]
    joined = op.call(MICROSOFT, "MatMulIntegerToFloat", operands, {})
    return _projected_attention(op, joined, mask, past, None, num_heads, scale, mask_filter_value, [], unidirectional)


@composite("RotaryEmbedding", domain=MICROSOFT, like=[0])
def rotary_embedding(
    op: Builder, x: Value, places: Value, cosines: Value, sines: Value,
    *, num_heads: int = 0, rotary_embedding_dim: int = 0, interleaved: int = 0, is_packed_batching: int = 0,
    scale: float = 1.0,
) -> Value:  # fmt: skip
    """Rotary positions; one place for all sequences counts on from it."""
    if is_packed_batching or scale != 1:
        raise refuse("rotary positions of packed sequences, or with a scale")
    shape = static_dims(x)
    batch, length = shape[0], shape[1] if len(shape) == 3 else shape[2]
    heads = num_heads or (shape[2] // (2 * static_dims(cosines)[1]) if len(shape) == 3 else shape[1])
    if len(static_dims(places)) == 1:
        places = op.Expand(places + op.const(np.arange(length)), [batch, length])
    return op.RotaryEmbedding(
        x, cosines, sines, places, num_heads=heads, rotary_embedding_dim=rotary_embedding_dim, interleaved=interleaved
    )
