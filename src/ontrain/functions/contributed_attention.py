"""onnxruntime's forms of attention, in standard operators and our own.

Source: onnxruntime, docs/ContribOperators.md; where it is silent, what the CPU kernels do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.functions.contributed import MICROSOFT
from ontrain.functions.interpolation import constant_of
from ontrain.functions.registry import NoBodyError, composite
from ontrain.functions.sliding_cache import SlidingCache, tokens_after
from ontrain.graph import Builder, static_dims
from ontrain.operators import Value

__all__: list[str] = []

Types = list[tuple[ir.DataType, ir.Shape]]
_HIDDEN = -10000.0


def _refuse(what: str) -> NoBodyError:
    return NoBodyError(what, "use CPUExecutionProvider")


def _plus(a: int | ir.SymbolicDim, b: int | ir.SymbolicDim) -> int | None:
    """The sum of two dimensions where both are numbers."""
    return a + b if isinstance(a, int) and isinstance(b, int) else None


def _over(a: int | ir.SymbolicDim | None, b: int) -> int | None:
    return a // b if isinstance(a, int) else None


def apart(op: Builder, x: Value, heads: int) -> Value:
    """[B, S, heads · width] as [B, heads, S, width]."""
    batch, length, _ = static_dims(x)
    return op.Transpose(op.Reshape(x, [batch, length, heads, -1]), perm=[0, 2, 1, 3])


def together(op: Builder, x: Value) -> Value:
    """[B, heads, S, width] as [B, S, heads · width]."""
    batch, heads, length, width = static_dims(x)
    return op.Reshape(op.Transpose(x, perm=[0, 2, 1, 3]), [batch, length, heads * width])


def attended(op: Builder, q: Value, k: Value, v: Value, bias: Value | None, scale: float) -> Value:
    result, _, _ = op.composite("Attention", q, k, v, bias, scale=scale or static_dims(q)[-1] ** -0.5, outputs=3)
    return result


def _added(a: Value | None, b: Value | None) -> Value | None:
    return b if a is None else a if b is None else a + b


def _ahead(op: Builder, queries: int, keys: int, dtype: ir.DataType) -> Value:
    """What hides keys from the queries before them; the queries are the last of the keys' places."""
    hidden = np.arange(keys) > np.arange(queries)[:, None] + (keys - queries)
    return op.const(np.where(hidden, float(dtype.min), 0.0)[None, None], dtype)


def _of_mask(op: Builder, mask: Value, queries: int, keys: int, past: int, hidden: float, dtype: ir.DataType) -> Value:
    """What a mask adds to the scores [B, heads, queries, keys]; it says by numbers how many keys count, or which."""
    shape = static_dims(mask)
    places = op.const(np.arange(keys), ir.DataType.INT32)
    if len(shape) == 1:
        seen = op.Less(places, op.Unsqueeze(mask, [1]))
        seen = op.Unsqueeze(seen, [1, 2])
    elif len(shape) == 2:
        seen = op.Unsqueeze(op.Greater(mask, 0), [1, 2])
    elif len(shape) == 3:
        seen = op.Unsqueeze(op.Greater(mask, 0), [1])
    else:
        seen = op.Greater(op.Slice(mask, [past, 0], [past + queries, keys], [2, 3]), 0)
    return op.Where(seen, op.const(0.0, dtype), op.const(hidden, dtype))


def _between(op: Builder, mask: Value, batch: int, keys: int, hidden: float, dtype: ir.DataType) -> Value:
    """For each sequence the place behind its last key, and then for each the place of its first."""
    ends, starts = (op.Unsqueeze(op.Slice(mask, [i * batch], [(i + 1) * batch], [0]), [1]) for i in range(2))
    places = op.const(np.arange(keys), ir.DataType.INT32)
    seen = op.And(op.Less(places, ends), op.GreaterOrEqual(places, starts))
    return op.Where(op.Unsqueeze(seen, [1, 2]), op.const(0.0, dtype), op.const(hidden, dtype))


def _attention_types(
    inputs: Sequence[Any], *, num_heads: int = 1, qkv_hidden_sizes: Sequence[int] = (), **_: object
) -> Types:
    x, weights = inputs[:2]
    batch, length, _ = x.shape
    width = qkv_hidden_sizes[2] if qkv_hidden_sizes else _over(weights.shape[1], 3)
    keys = qkv_hidden_sizes[1] if qkv_hidden_sizes else width
    past = inputs[4] if len(inputs) > 4 else None
    whole = length if past is None else _plus(past.shape[3], length)
    present = ir.Shape([2, batch, num_heads, whole, _over(keys, num_heads)])
    return [(x.dtype, ir.Shape([batch, length, width])), (x.dtype, present)]


@composite("Attention", domain=MICROSOFT, infer=_attention_types)
def attention(
    op: Builder, x: Value, weights: Value, bias: Value | None = None, mask: Value | None = None,
    past: Value | None = None, attention_bias: Value | None = None, past_length: Value | None = None, *,
    num_heads: int = 1, scale: float = 0.0, mask_filter_value: float = _HIDDEN, do_rotary: int = 0,
    past_present_share_buffer: int = 0, qkv_hidden_sizes: Sequence[int] = (), unidirectional: int = 0,
    rotary_embedding_dim: int = 0,
) -> tuple[Value, Value | None]:  # fmt: skip
    """Projection to queries, keys and values by one matrix, and attention; also keys and values with the past ones."""
    if do_rotary or past_present_share_buffer or past_length is not None:
        raise _refuse("attention with rotary positions, or with a buffer shared by past and present")
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
            bias = _added(bias, _between(op, mask, batch, keys, hidden, joined.dtype))
        elif len(shape) == 1 and shape[0] != batch:
            raise _refuse("a mask of cumulated lengths")
        else:
            bias = _added(bias, _of_mask(op, mask, queries, keys, before, hidden, joined.dtype))
    if unidirectional and queries > 1:
        bias = _added(bias, _ahead(op, queries, keys, joined.dtype))
    alike = static_dims(k) == static_dims(v)  # else they cannot be handed on as one
    present = op.Concat(op.Unsqueeze(k, [0]), op.Unsqueeze(v, [0]), axis=0) if alike else None
    return together(op, attended(op, q, k, v, bias, scale)), present


def _multi_head_types(inputs: Sequence[Any], *, num_heads: int = 1, **_: object) -> Types:
    query, key, value, past = ([*inputs, *[None] * 7][i] for i in (0, 1, 2, 6))
    batch, length = query.shape[0], query.shape[1]
    width = query.shape[4] if len(query.shape) == 5 else _over(query.shape[2], num_heads)
    rank = 0 if key is None else len(key.shape)
    keys = length if rank == 0 else key.shape[2] if rank == 4 else key.shape[1]
    value_width = width if rank in (0, 5) else value.shape[3] if rank == 4 else _over(value.shape[2], num_heads)
    whole = keys if past is None else _plus(past.shape[2], keys)
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
    *, num_heads: int = 1, scale: float = 0.0, mask_filter_value: float = _HIDDEN, unidirectional: int = 0,
) -> tuple[Value, Value, Value]:  # fmt: skip
    """Attention of queries, keys and values that may lie packed; also keys and values with the past ones."""
    if past_length is not None or indirection is not None:
        raise _refuse("a buffer shared by past and present, or beams")
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
            raise _refuse("a mask of cumulated lengths")
        added = _added(added, _of_mask(op, mask, queries, keys, before, mask_filter_value, query.dtype))
    if unidirectional and queries > 1:
        added = _added(added, _ahead(op, queries, keys, query.dtype))
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
    bias: Value | None = None, *, num_heads: int = 1, scale: float = 0.0, mask_filter_value: float = _HIDDEN,
    past_present_share_buffer: int = 0, output_qk: int = 0,
) -> tuple[Value, ...]:  # fmt: skip
    """MultiHeadAttention of one query a sequence, whose key and value may go into a buffer behind the past ones.

    The scores, which are the fourth output if asked for, are those before the softmax.
    """
    if indirection is not None:
        raise _refuse("beams")
    taken = _length_of(past_length)
    if output_qk and past_key is not None and (not past_present_share_buffer or taken is None):
        raise _refuse("the scores as output, beside a past whose length is no constant of the file")
    if output_qk and past_key is None:
        assert key is not None and value is not None
        q, k, v = _separate(op, query, key, value, bias, num_heads)
        seen = None if mask is None else _of_mask(op, mask, 1, static_dims(k)[2], 0, mask_filter_value, q.dtype)
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
    seen = op.LessOrEqual(op.const(np.arange(room)), place)
    added = op.Where(seen, op.const(0.0, q.dtype), op.const(-math.inf, q.dtype))
    if mask is not None:
        over = op.Pad(mask, [0, 0, 0, room - static_dims(mask)[1]], op.const(1, mask.dtype))
        added = added + _of_mask(op, over, 1, room, 0, mask_filter_value, q.dtype)
    if attention_bias is not None:
        added = added + op.Pad(attention_bias, [0] * 7 + [room - static_dims(attention_bias)[-1]])
    added = op.Expand(added, [1, 1, 1, room]) if len(static_dims(added)) == 1 else added
    results = together(op, attended(op, q, k, v, added, scale)), op.Identity(k), op.Identity(v)
    if not output_qk or taken is None:
        return results
    return *results, op.Slice(_decoder_scores(op, q, k, added, scale), [0], [taken + 1], [3])


@composite("RotaryEmbedding", domain=MICROSOFT, like=[0])
def rotary_embedding(
    op: Builder, x: Value, places: Value, cosines: Value, sines: Value,
    *, num_heads: int = 0, rotary_embedding_dim: int = 0, interleaved: int = 0, is_packed_batching: int = 0,
    scale: float = 1.0,
) -> Value:  # fmt: skip
    """Rotary positions; one place for all sequences counts on from it."""
    if is_packed_batching or scale != 1:
        raise _refuse("rotary positions of packed sequences, or with a scale")
    shape = static_dims(x)
    batch, length = shape[0], shape[1] if len(shape) == 3 else shape[2]
    heads = num_heads or (shape[2] // (2 * static_dims(cosines)[1]) if len(shape) == 3 else shape[1])
    if len(static_dims(places)) == 1:
        places = op.Expand(places + op.const(np.arange(length)), [batch, length])
    return op.RotaryEmbedding(
        x, cosines, sines, places, num_heads=heads, rotary_embedding_dim=rotary_embedding_dim, interleaved=interleaved
    )


def _grouped_types(
    inputs: Sequence[Any], *, num_heads: int = 1, kv_num_heads: int = 1, sliding_window_cache: int = 0, **_: object
) -> Types:
    query, key, past, total = ([*inputs, *[None] * 7][i] for i in (0, 1, 3, 6))
    batch, length, hidden = query.shape
    width = _over(hidden, num_heads if key is not None else num_heads + 2 * kv_num_heads)
    known = None if total is None or total.const_value is None else int(total.const_value.numpy().reshape(()))
    buffer = 0 if past is None else past.shape[2]
    whole = max(known, buffer) if known is not None and isinstance(buffer, int) else None
    if sliding_window_cache:
        whole = buffer if isinstance(buffer, int) else None
    # As in onnxruntime, a size that the cache leaves open is open in the next one.
    cache_width = width if past is None or isinstance(past.shape[3], int) else past.shape[3]
    present = (query.dtype, ir.Shape([batch, kv_num_heads, whole, cache_width]))
    return [(query.dtype, ir.Shape([batch, length, width * num_heads if width else None])), present, present]


@dataclass(frozen=True)
class _Scores:
    """What is done to scores before and in the softmax."""

    scale: float
    softcap: float
    sinks: Value | None
    smooth: bool

    def attended(self, op: Builder, q: Value, k: Value, v: Value, bias: Value) -> Value:
        """Attention, by the kernel where nothing is special."""
        if not self.softcap and self.sinks is None and not self.smooth:
            return attended(op, q, k, v, bias, self.scale)
        batch, heads, queries, width = static_dims(q)
        scores = op.MatMul(q, op.Transpose(k, perm=[0, 1, 3, 2])) * (self.scale or width**-0.5)
        if self.softcap:
            scores = op.Tanh(scores * (1 / self.softcap)) * self.softcap
        scores = scores + bias
        if self.sinks is None and not self.smooth:
            return op.MatMul(op.Softmax(scores, axis=-1), v)
        sinks = op.const(np.zeros(heads), q.dtype) if self.sinks is None else self.sinks
        extra = op.Expand(op.Reshape(sinks, [1, heads, 1, 1]), [batch, heads, queries, 1])
        shares = op.Softmax(op.Concat(scores, extra, axis=-1), axis=-1)
        return op.MatMul(op.Slice(shares, [0], [static_dims(scores)[-1]], [3]), v)


@composite("GroupQueryAttention", domain=MICROSOFT, infer=_grouped_types)
def group_query_attention(
    op: Builder, query: Value, key: Value | None = None, value: Value | None = None, past_key: Value | None = None,
    past_value: Value | None = None, lengths: Value | None = None, total: Value | None = None,
    cosines: Value | None = None, sines: Value | None = None, places: Value | None = None,
    attention_bias: Value | None = None, sinks: Value | None = None, k_scale: Value | None = None,
    v_scale: Value | None = None, q_norm: Value | None = None, k_norm: Value | None = None, *, num_heads: int = 1,
    kv_num_heads: int = 1, scale: float = 0.0, do_rotary: int = 0, rotary_interleaved: int = 0,
    local_window_size: int = -1, softcap: float = 0.0, smooth_softmax: int = 0, qk_output: int = 0, causal: int = 1,
    sliding_window_cache: int = 0, qk_norm_epsilon: float = 1e-6, **others: object,
) -> tuple[Value, Value, Value]:  # fmt: skip
    """Causal attention whose keys and values serve groups of queries; new ones are written behind each sequence's past.

    `lengths` are those of the sequences with their new keys, less one; `total` is the longest.
    """
    if k_scale is not None or v_scale is not None or qk_output:
        raise _refuse("a quantised cache, or the scores as output")
    if sliding_window_cache and (attention_bias is not None or past_key is None or past_value is None or not causal):
        raise _refuse("a windowed cache with a bias, without a cache, or without a causal mask")
    number = constant_of(total, "its input total_sequence_length")
    assert number is not None and lengths is not None
    longest = int(number.reshape(()))
    if key is None:
        width = static_dims(query)[2] // (num_heads + 2 * kv_num_heads)
        sizes = [heads * width for heads in (num_heads, kv_num_heads, kv_num_heads)]
        query, key, value = op.Split(query, sizes, axis=-1, outputs=3)
    assert value is not None
    q, k, v = apart(op, query, num_heads), apart(op, key, kv_num_heads), apart(op, value, kv_num_heads)
    if q_norm is not None:
        q, k = (op.RMSNormalization(x, w, axis=-1, epsilon=qk_norm_epsilon) for x, w in ((q, q_norm), (k, k_norm)))
    batch, _, length, width = static_dims(q)
    before = op.Sub(op.Cast(lengths, to=ir.DataType.INT64), op.const(np.array(length - 1)))
    if length == longest:  # a prompt: shorter sequences are followed by padding
        before = op.const(np.zeros(batch, np.int64))
    before = op.Reshape(before, [batch])
    own = op.Add(op.Unsqueeze(before, [1]), op.const(np.arange(length)[None]))  # [B, length]
    if do_rotary:
        q, k = (
            op.RotaryEmbedding(x, cosines, sines, own if places is None else places, interleaved=rotary_interleaved)
            for x in (q, k)
        )
    if sliding_window_cache:
        assert past_key is not None and past_value is not None
        capacity, after = static_dims(past_key)[2], tokens_after(op, lengths, batch)
        cache = SlidingCache(before, after, length, capacity, local_window_size)
        whole = capacity + length
        k, v = (cache.joined(op, past, new) for past, new in ((past_key, k), (past_value, v)))
        caches = [cache.updated(op, x) for x in (k, v)]
        bias = _window(op, own, op.Unsqueeze(cache.positions(op), [1]), query.dtype, local_window_size)
    else:
        whole = max(longest, static_dims(past_key)[2] if past_key is not None else 0)
        k, v = (behind(op, past, new, before, whole) for past, new in ((past_key, k), (past_value, v)))
        caches = [op.Identity(k), op.Identity(v)]
        keys = op.const(np.arange(whole)[None, None])
        bias = (
            _window(op, own, keys, query.dtype, local_window_size) if causal
            else _short(op, lengths, whole, query.dtype)
        )  # fmt: skip
    if attention_bias is not None:
        missing = whole - static_dims(attention_bias)[-1]
        bias = bias + (op.Pad(attention_bias, [0] * 7 + [missing]) if missing else attention_bias)
    groups = num_heads // kv_num_heads
    wide = [
        op.Reshape(op.Expand(op.Unsqueeze(x, [2]), [batch, kv_num_heads, groups, whole, width]),
                   [batch, num_heads, whole, width]) for x in (k, v)
    ]  # fmt: skip
    scores = _Scores(scale, softcap, sinks, bool(smooth_softmax))
    return together(op, scores.attended(op, q, wide[0], wide[1], bias)), caches[0], caches[1]


def behind(op: Builder, past: Value | None, new: Value, before: Value, whole: int) -> Value:
    """New keys [B, heads, S, width] in a buffer of `whole` places, each sequence's behind its past."""
    batch, heads, length, width = static_dims(new)
    if length == whole:
        return new
    held = 0 if past is None else static_dims(past)[2]
    if not held:
        return op.Pad(new, [0, 0, 0, 0, 0, 0, whole - length, 0])
    buffer = op.Pad(past, [0, 0, 0, 0, 0, 0, whole - held, 0]) if whole > held else past
    return op.TensorScatter(buffer, new, before, axis=2)


def _window(op: Builder, own: Value, keys: Value, dtype: ir.DataType, window: int) -> Value:
    """What hides from each query [B, S] the keys [B or 1, 1, K] behind it, and those more than a window before it."""
    own = op.Unsqueeze(own, [2])
    seen = op.LessOrEqual(keys, own)
    if window >= 0:
        seen = op.And(seen, op.Greater(op.Add(keys, op.const(np.array(window))), own))
    return op.Where(op.Unsqueeze(seen, [1]), op.const(0.0, dtype), op.const(-math.inf, dtype))


def _short(op: Builder, lengths: Value, whole: int, dtype: ir.DataType) -> Value:
    """What hides the keys behind a sequence's end."""
    keys = op.const(np.arange(whole)[None])
    seen = op.LessOrEqual(keys, op.Unsqueeze(op.Cast(lengths, to=ir.DataType.INT64), [1]))
    return op.Where(op.Unsqueeze(seen, [1, 2]), op.const(0.0, dtype), op.const(-math.inf, dtype))


def _quantised_attention_types(inputs: Sequence[Any], **a: Any) -> Types:
    past = [*inputs, None, None, None, None][8]
    like = ir.Value(name="x", type=ir.TensorType(inputs[3].dtype), shape=inputs[0].shape)
    return _attention_types([like, inputs[1], None, None, past], **a)


@composite("QAttention", domain=MICROSOFT, infer=_quantised_attention_types)
def quantised_attention(
    op: Builder, x: Value, weights: Value, bias: Value, x_scale: Value, w_scale: Value, mask: Value | None = None,
    x_zero: Value | None = None, w_zero: Value | None = None, past: Value | None = None, *, num_heads: int = 1,
    scale: float = 0.0, mask_filter_value: float = _HIDDEN, do_rotary: int = 0, past_present_share_buffer: int = 0,
    unidirectional: int = 0,
) -> tuple[Value, Value | None]:  # fmt: skip
    """Attention whose projection is a product of whole numbers."""
    if do_rotary or past_present_share_buffer:
        raise _refuse("attention with rotary positions, or with a buffer shared by past and present")
    operands = [x, weights, x_scale, w_scale, x_zero, w_zero, bias]
    joined = op.call(MICROSOFT, "MatMulIntegerToFloat", operands, {})
    return _projected_attention(op, joined, mask, past, None, num_heads, scale, mask_filter_value, [], unidirectional)
