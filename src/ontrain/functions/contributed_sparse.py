"""onnxruntime's attention over blocks of keys, in standard operators and our own.

Source: onnxruntime, docs/ContribOperators.md; M. Abdin et al., Phi-3 Technical Report, arXiv:2404.14219.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.functions.contributed import MICROSOFT
from ontrain.functions.contributed_grouped import behind
from ontrain.functions.contributed_heads import apart, attended, together
from ontrain.functions.contributed_types import Types
from ontrain.functions.interpolation import constant_of
from ontrain.functions.registry import composite
from ontrain.graph import Builder, static_dims
from ontrain.operators import Value

__all__: list[str] = []

Array = np.ndarray[Any, Any]


def _types(inputs: Sequence[Any], *, num_heads: int = 1, **_: object) -> Types:
    query, past_key, past_value = inputs[0], inputs[3], inputs[4]
    batch, length, _ = query.shape
    width = past_key.shape[3]
    hidden = num_heads * width if isinstance(width, int) else None
    return [
        (query.dtype, ir.Shape([batch, length, hidden])), (query.dtype, past_key.shape),
        (query.dtype, past_value.shape),
    ]  # fmt: skip


@composite("SparseAttention", domain=MICROSOFT, infer=_types)
def sparse_attention(
    op: Builder, query: Value, key: Value | None, value: Value | None, past_key: Value, past_value: Value,
    block_rows: Value, block_columns: Value, total: Value, lengths: Value, cosines: Value | None = None,
    sines: Value | None = None, *, num_heads: int = 1, kv_num_heads: int = 1, sparse_block_size: int = 16,
    scale: float = 0.0, do_rotary: int = 0, rotary_interleaved: int = 0,
) -> tuple[Value, Value, Value]:  # fmt: skip
    """Causal attention to the keys of those blocks that a layout of the head names; heads take the layouts in turns.

    `lengths` are those of the sequences with their new keys, `total` is the longest.
    """
    number = constant_of(total, "its input total_sequence_length")
    rows, columns = constant_of(block_rows, "block_row_indices"), constant_of(block_columns, "block_col_indices")
    assert number is not None and rows is not None and columns is not None
    longest, width = int(number.reshape(())), static_dims(past_key)[3]
    if key is None:
        sizes = [heads * width for heads in (num_heads, kv_num_heads, kv_num_heads)]
        query, key, value = op.Split(query, sizes, axis=-1, outputs=3)
    assert value is not None
    q, k, v = apart(op, query, num_heads), apart(op, key, kv_num_heads), apart(op, value, kv_num_heads)
    batch, _, length, _ = static_dims(q)
    before = op.Sub(op.Cast(lengths, to=ir.DataType.INT64), op.const(np.array(length)))
    if length == longest:  # a prompt: shorter sequences are followed by padding
        before = op.const(np.zeros(batch, np.int64))
    own = op.Add(op.Unsqueeze(op.Reshape(before, [batch]), [1]), op.const(np.arange(length)[None]))  # [B, length]
    if do_rotary:
        q, k = (op.RotaryEmbedding(x, cosines, sines, own, interleaved=rotary_interleaved) for x in (q, k))
    room = static_dims(past_key)[2]
    k, v = (behind(op, past, new, before, room) for past, new in ((past_key, k), (past_value, v)))
    bias = _hidden(op, own, _layouts(rows, columns), sparse_block_size, longest, num_heads, query.dtype)
    groups = num_heads // kv_num_heads
    wide = [
        op.Reshape(op.Expand(op.Unsqueeze(op.Slice(x, [0], [longest], [2]), [2]),
                             [batch, kv_num_heads, groups, longest, width]), [batch, num_heads, longest, width])
        for x in (k, v)
    ]  # fmt: skip
    return together(op, attended(op, q, wide[0], wide[1], bias, scale)), op.Identity(k), op.Identity(v)


def _layouts(rows: Array, columns: Array) -> Array:
    """Which blocks of keys a block of queries sees: [layouts, blocks, blocks], of the compressed rows."""
    count, blocks = rows.shape[0], rows.shape[1] - 1
    seen = np.zeros((count, blocks, blocks), bool)
    for layout in range(count):
        for block in range(blocks):
            seen[layout, block, columns[layout, rows[layout, block] : rows[layout, block + 1]]] = True
    return seen


def _hidden(
    op: Builder, own: Value, seen: Array, block: int, longest: int, heads: int, dtype: ir.DataType
) -> Value:  # fmt: skip
    """What hides keys from queries at the places [B, S]: those behind them, and those of other blocks."""
    batch, length = static_dims(own)
    layouts, blocks, _ = seen.shape
    named = op.Gather(op.const(seen.transpose(1, 0, 2)), op.Div(own, op.const(np.array(block))), axis=0)
    wide = op.Expand(op.Unsqueeze(named, [4]), [batch, length, layouts, blocks, block])
    of_blocks = op.Slice(op.Reshape(wide, [batch, length, layouts, blocks * block]), [0], [longest], [3])
    ahead = op.LessOrEqual(op.const(np.arange(longest)), op.Unsqueeze(own, [2, 3]))
    hidden = op.Where(op.And(of_blocks, ahead), op.const(0.0, dtype), op.const(-math.inf, dtype))
    hidden = op.Transpose(hidden, perm=[0, 2, 1, 3])  # [B, layouts, S, longest]
    turns = heads // layouts
    whole = op.Expand(op.Unsqueeze(hidden, [1]), [batch, turns, layouts, length, longest])
    return op.Reshape(whole, [batch, heads, length, longest])
