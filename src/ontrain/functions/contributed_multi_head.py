"""onnxruntime's attention of queries, keys and values that are projected already, in standard operators and our own.

Source: onnxruntime, docs/ContribOperators.md; where it is silent, what the CPU kernels do.
"""

from __future__ import annotations

import math
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


def _multi_head_types(inputs: Sequence[Any], *, num_heads: int = 1, **_: object) -> Types:
    query, key, value, past = ([*inputs, *[None] * 7][i] for i in (0, 1, 2, 6))
    batch, length = query.shape[0], query.shape[1]
    width = query.shape[4] if len(query.shape) == 5 else quotient(query.shape[2], num_heads)
    rank = 0 if key is None else len(key.shape)
    keys = length if rank == 0 else key.shape[2] if rank == 4 else key.shape[1]
    value_width = width if rank in (0, 5) else value.shape[3] if rank == 4 else quotient(value.shape[2], num_heads)
    whole = keys if past is None else total(past.shape[2], keys)
    hidden = value_width * num_heads if isinstance(value_width, int) else None
    return [
        (query.dtype, ir.Shape([batch, length, hidden])),
        (query.dtype, ir.Shape([batch, num_heads, whole, width])),
        (query.dtype, ir.Shape([batch, num_heads, whole, value_width])),
    ]


@composite("MultiHeadAttention", domain=MICROSOFT, infer=_multi_head_types)
def multi_head_attention(
    op: Builder, query: Value, key: Value | None = None, value: Value | None = None, bias: Value | None = None,
    mask: Value | None = None, attention_bias: Value | None = None, past_key: Value | None = None,
    past_value: Value | None = None, past_length: Value | None = None, indirection: Value | None = None,
    *, num_heads: int = 1, scale: float = 0.0, mask_filter_value: float = HIDDEN, unidirectional: int = 0,
) -> tuple[Value, Value, Value]:  # fmt: skip
    """Attention of queries, keys and values that may lie packed; also keys and values with the past ones."""
    if past_length is not None or indirection is not None:
        raise refuse("a buffer shared by past and present, or beams")
    if key is None or len(static_dims(key)) == 5:
        q, k, v = _unpacked(op, query, key, bias, num_heads)
    else:
        q, k, v = _separate(op, query, key, value, bias, num_heads)
    before = 0
    if past_key is not None:
        before = static_dims(past_key)[2]
        k, v = op.Concat(past_key, k, axis=2), op.Concat(past_value, v, axis=2)
    queries, keys = static_dims(q)[2], static_dims(k)[2]
    added = attention_bias
    if mask is not None:
        if len(static_dims(mask)) == 1 and static_dims(mask)[0] != static_dims(q)[0]:
            raise refuse("a mask of cumulated lengths")
        added = summed(added, mask_bias(op, mask, queries, keys, before, mask_filter_value, query.dtype))
    if unidirectional and queries > 1:
        added = summed(added, ahead(op, before, queries, keys, query.dtype))
    return together(op, attended(op, q, k, v, added, scale)), op.Identity(k), op.Identity(v)


def _unpacked(op: Builder, query: Value, key: Value | None, bias: Value | None, heads: int) -> list[Value]:
    """Query, key and value of one operand [B, S, heads, 3, width], or of a query and one [B, L, heads, 2, width]."""
    packed, count = (query, 3) if key is None else (key, 2)
    parts = [op.Gather(packed, np.array(i), axis=3) for i in range(count)]
    if key is not None:
        batch, length, hidden = static_dims(query)
        parts = [op.Reshape(query, [batch, length, heads, hidden // heads]), *parts]
    if bias is not None:
        width = static_dims(parts[0])[-1]
        biases = op.Split(bias, [heads * width] * 3, axis=0, outputs=3)
        parts = [part + op.Reshape(b, [heads, width]) for part, b in zip(parts, biases, strict=True)]
    return [op.Transpose(part, perm=[0, 2, 1, 3]) for part in parts]


def _separate(
    op: Builder, query: Value, key: Value, value: Value | None, bias: Value | None, heads: int
) -> list[Value]:
    """Of keys and values [B, heads, L, width] the bias is in already."""
    assert value is not None
    operands = [query, key, value]
    ready = len(static_dims(key)) == 4
    if bias is not None:
        hidden = static_dims(query)[-1]
        sizes = [hidden, hidden, static_dims(bias)[0] - 2 * hidden]
        biases = op.Split(bias, sizes, axis=0, outputs=3)
        operands = [x if ready and i else x + b for i, (x, b) in enumerate(zip(operands, biases, strict=True))]
    return [x if len(static_dims(x)) == 4 else apart(op, x, heads) for x in operands]


def _decoder_types(
    inputs: Sequence[Any], *, past_present_share_buffer: int = 0, output_qk: int = 0, **attributes: Any
) -> Types:
    past = [*inputs, *[None] * 7][5]
    joined = None if past_present_share_buffer else past
    result, *present = _multi_head_types([*inputs[:3], None, None, None, joined], **attributes)
    if past_present_share_buffer and past is not None:
        present = [(past.dtype, past.shape)] * 2
    if not output_qk:
        return [result, *present]
    keys: Any = present[0][1][2]
    if past_present_share_buffer and past is not None:
        known = _length_of(inputs[7])
        keys = None if known is None else known + 1
    return [result, *present, (result[0], ir.Shape([inputs[0].shape[0], attributes["num_heads"], 1, keys]))]


def _length_of(past: Value | None) -> int | None:
    """How many places of a buffer are taken, if the file says so."""
    return None if past is None or past.const_value is None else int(past.const_value.numpy().reshape(()))


def _decoder_scores(op: Builder, q: Value, k: Value, added: Value | None, scale: float) -> Value:
    """What the softmax is taken of."""
    scores = op.MatMul(q, op.Transpose(k, perm=[0, 1, 3, 2])) * (scale or static_dims(q)[-1] ** -0.5)
    return scores if added is None else scores + added


@composite("DecoderMaskedMultiHeadAttention", domain=MICROSOFT, infer=_decoder_types)
def decoder_masked_attention(
    op: Builder, query: Value, key: Value | None = None, value: Value | None = None, mask: Value | None = None,
    attention_bias: Value | None = None, past_key: Value | None = None, past_value: Value | None = None,
    past_length: Value | None = None, beams: Value | None = None, indirection: Value | None = None,
    bias: Value | None = None, *, num_heads: int = 1, scale: float = 0.0, mask_filter_value: float = HIDDEN,
    past_present_share_buffer: int = 0, output_qk: int = 0,
) -> tuple[Value, ...]:  # fmt: skip
    """MultiHeadAttention of one query a sequence, whose key and value may go into a buffer behind the past ones.

    The scores, which are the fourth output if asked for, are those before the softmax.
    """
    if indirection is not None:
        raise refuse("beams")
    taken = _length_of(past_length)
    if output_qk and past_key is not None and (not past_present_share_buffer or taken is None):
        raise refuse("the scores as output, beside a past whose length is no constant of the file")
    if output_qk and past_key is None:
        assert key is not None and value is not None
        q, k, v = _separate(op, query, key, value, bias, num_heads)
        seen = None if mask is None else mask_bias(op, mask, 1, static_dims(k)[2], 0, mask_filter_value, q.dtype)
        result = together(op, attended(op, q, k, v, seen, scale))
        return result, op.Identity(k), op.Identity(v), _decoder_scores(op, q, k, seen, scale)
    if not past_present_share_buffer or past_key is None:
        attributes = {"num_heads": num_heads, "mask_filter_value": mask_filter_value}
        operands = [query, key, value, bias, mask, attention_bias, past_key, past_value]
        scaled = {**attributes, "scale": scale} if scale else attributes
        return op.call(MICROSOFT, "MultiHeadAttention", operands, scaled, 3)
    if key is None:
        width = static_dims(query)[2] // 3
        query, key, value = op.Split(query, [width] * 3, axis=-1, outputs=3)
    q, k, v = _separate(op, query, key, value, bias, num_heads)
    batch, _, room, _ = static_dims(past_key)
    place = op.Reshape(op.Cast(past_length, to=ir.DataType.INT64), [1])
    k, v = (
        op.TensorScatter(past, new, op.Expand(place, [batch]), axis=2) for past, new in ((past_key, k), (past_value, v))
    )
    added = _in_buffer(op, place, room, mask, attention_bias, mask_filter_value, q.dtype)
    results = together(op, attended(op, q, k, v, added, scale)), op.Identity(k), op.Identity(v)
    if not output_qk or taken is None:
        return results
    return *results, op.Slice(_decoder_scores(op, q, k, added, scale), [0], [taken + 1], [3])


def _in_buffer(
    op: Builder, place: Value, room: int, mask: Value | None, attention_bias: Value | None, hidden: float,
    dtype: ir.DataType,
) -> Value:  # fmt: skip
    """What is added to the scores of a buffer of `room` keys, of which those up to `place` count."""
    seen = op.LessOrEqual(op.const(np.arange(room)), place)
    added = op.Where(seen, op.const(0.0, dtype), op.const(-math.inf, dtype))
    if mask is not None:
        over = op.Pad(mask, [0, 0, 0, room - static_dims(mask)[1]], op.const(1, mask.dtype))
        added = added + mask_bias(op, over, 1, room, 0, hidden, dtype)
    if attention_bias is not None:
        added = added + op.Pad(attention_bias, [0] * 7 + [room - static_dims(attention_bias)[-1]])
    return op.Expand(added, [1, 1, 1, room]) if len(static_dims(added)) == 1 else added
