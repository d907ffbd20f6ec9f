"""onnxruntime's GroupQueryAttention: keys and values of few heads behind a past, in standard operators and our own.

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
from ontrain.functions.contributed_heads import (
    apart,
    attended,
    quotient,
    refuse,
    together,
)
from ontrain.functions.contributed_types import Types
from ontrain.functions.interpolation import constant_of
from ontrain.functions.registry import composite
from ontrain.functions.sliding_cache import SlidingCache, tokens_after
from ontrain.graph import Builder, static_dims
from ontrain.operators import Value

__all__ = ["behind"]


def _grouped_types(
    inputs: Sequence[Any], *, num_heads: int = 1, kv_num_heads: int = 1, sliding_window_cache: int = 0, **_: object
) -> Types:
    query, key, past, total = ([*inputs, *[None] * 7][i] for i in (0, 1, 3, 6))
    batch, length, hidden = query.shape
    width = quotient(hidden, num_heads if key is not None else num_heads + 2 * kv_num_heads)
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
        raise refuse("a quantised cache, or the scores as output")
    if sliding_window_cache and (attention_bias is not None or past_key is None or past_value is None or not causal):
        raise refuse("a windowed cache with a bias, without a cache, or without a causal mask")
    number = constant_of(total, "its input total_sequence_length")
    assert number is not None and lengths is not None
    q, k, v = _heads(op, query, key, value, num_heads, kv_num_heads)
    if q_norm is not None:
        q, k = (op.RMSNormalization(x, w, axis=-1, epsilon=qk_norm_epsilon) for x, w in ((q, q_norm), (k, k_norm)))
    batch, _, length, _ = static_dims(q)
    longest = int(number.reshape(()))
    before = _before(op, lengths, batch, length, longest)
    own = op.Add(op.Unsqueeze(before, [1]), op.const(np.arange(length)[None]))  # [B, S]
    if do_rotary:
        at = own if places is None else places
        q, k = (op.RotaryEmbedding(x, cosines, sines, at, interleaved=rotary_interleaved) for x in (q, k))
    pasts = ((past_key, k), (past_value, v))
    if sliding_window_cache:
        assert past_key is not None
        after, capacity = tokens_after(op, lengths, batch), static_dims(past_key)[2]
        cache = SlidingCache(before, after, length, capacity, local_window_size)
        k, v = (op.Concat(past, new, axis=2) for past, new in pasts)
        caches = [cache.updated(op, x) for x in (k, v)]
        bias = _window(op, own, op.Unsqueeze(cache.positions(op), [1]), query.dtype, local_window_size)
    else:
        whole = max(longest, 0 if past_key is None else static_dims(past_key)[2])
        k, v = (behind(op, past, new, before, whole) for past, new in pasts)
        caches = [op.Identity(k), op.Identity(v)]
        if causal:
            bias = _window(op, own, op.const(np.arange(whole)[None, None]), query.dtype, local_window_size)
        else:
            bias = _short(op, lengths, whole, query.dtype)
    if attention_bias is not None:
        bias = bias + _widened(op, attention_bias, static_dims(k)[2])
    scores = _Scores(scale, softcap, sinks, bool(smooth_softmax))
    k, v = (_for_each_head(op, x, num_heads) for x in (k, v))
    return together(op, scores.attended(op, q, k, v, bias)), caches[0], caches[1]


def _heads(
    op: Builder, query: Value, key: Value | None, value: Value | None, num_heads: int, kv_num_heads: int
) -> list[Value]:
    """Queries [B, heads, S, width], and the new keys and values of fewer heads; all three may come in `query`."""
    heads = (num_heads, kv_num_heads, kv_num_heads)
    if key is None:
        width = static_dims(query)[2] // sum(heads)
        query, key, value = op.Split(query, [n * width for n in heads], axis=-1, outputs=3)
    assert value is not None
    return [apart(op, x, n) for x, n in zip((query, key, value), heads, strict=True)]


def _before(op: Builder, lengths: Value, batch: int, length: int, longest: int) -> Value:
    """The tokens of each sequence before the `length` new ones, [B]."""
    if length == longest:  # a prompt: shorter sequences are followed by padding
        return op.const(np.zeros(batch, np.int64))
    return op.Reshape(op.Sub(op.Cast(lengths, to=ir.DataType.INT64), op.const(np.array(length - 1))), [batch])


def _widened(op: Builder, bias: Value, keys: int) -> Value:
    """A bias [B, heads, S, K] with zeros for the keys that it does not reach."""
    missing = keys - static_dims(bias)[-1]
    return op.Pad(bias, [0] * 7 + [missing]) if missing else bias


def _for_each_head(op: Builder, x: Value, num_heads: int) -> Value:
    """Keys or values [B, few heads, K, width], each once for each query head of its group."""
    batch, heads, keys, width = static_dims(x)
    copies = op.Expand(op.Unsqueeze(x, [2]), [batch, heads, num_heads // heads, keys, width])
    return op.Reshape(copies, [batch, num_heads, keys, width])


def behind(op: Builder, past: Value | None, new: Value, before: Value, whole: int) -> Value:
    """Return new keys [B, heads, S, width] in a buffer of `whole` places, each sequence's behind its past."""
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
