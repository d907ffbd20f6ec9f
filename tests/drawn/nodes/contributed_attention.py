"""Attention of com.microsoft: packed and apart, with masks, biases, pasts and rotations."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.drawn.draw import Draw
from tests.drawn.nodes.node import Node, attributes, node

HEADS, SIZE = 2, 4
WIDTH = HEADS * SIZE


def _node(op_type: str, inputs: list, settings: dict[str, Any], outputs: int = 1) -> Node:
    return Node(op_type, inputs, settings, outputs, domain="com.microsoft")


def _mask(draw: Draw, batch: int, queries: int, keys: int) -> np.ndarray | None:
    """None, lengths, lengths and starts, or 0 for what is hidden."""
    kind = draw.choice(["none", "lengths", "starts", "keys", "places"])
    if kind == "lengths":
        return draw.indices(1, keys + 1, (batch,)).astype(np.int32)
    if kind == "starts":
        return np.concatenate([np.full(batch, keys), np.zeros(batch)]).astype(np.int32)
    if kind == "none":
        return None
    mask = draw.indices(0, 2, (batch, keys) if kind == "keys" else (batch, queries, keys)).astype(np.int32)
    mask[..., 0] = 1
    return mask


@node.share(3)
def packed_attention(draw: Draw) -> Node:
    """Attention of a single product: heads of another size for values, causal, with a past."""
    batch, length = draw.sizes(2, 1, 4)
    past = draw.choice([0, 0, 2])
    apart = not past and draw.flag(0.3)
    values = 6 if apart else WIDTH
    keys = length + past
    bias = draw.array(draw.choice([1, batch]), draw.choice([1, HEADS]), length, keys) if draw.flag(0.3) else None
    causal = draw.flag(0.4)
    inputs = [
        draw.array(batch, length, 5), draw.array(5, 2 * WIDTH + values), draw.array(2 * WIDTH + values),
        _mask(draw, batch, length, keys), draw.array(2, batch, HEADS, past, SIZE) if past else None, bias,
    ]  # fmt: skip
    settings = attributes(
        num_heads=HEADS, unidirectional=int(causal), qkv_hidden_sizes=[WIDTH, WIDTH, values] if apart else None,
        scale=draw.choice([None, None, 0.3]), mask_filter_value=draw.choice([None, None, -1000.0]),
    )  # fmt: skip
    return _node("Attention", inputs, settings, 2 if past else 1)


@node.share(3)
def multihead_attention(draw: Draw) -> Node:
    """MultiHeadAttention of queries, keys and values: apart, of heads, or keys and values together."""
    batch, queries = draw.sizes(2, 1, 4)
    form = draw.choice(["apart", "apart", "heads", "packed keys and values"])
    keys = draw.integer(1, 5)
    values = 6 if form == "apart" and draw.flag(0.3) else WIDTH
    past = draw.choice([0, 0, 2]) if form == "apart" and values == WIDTH else 0
    biased = draw.flag() and form in ("apart", "heads")
    tensors = {
        "apart": [draw.array(batch, queries, WIDTH), draw.array(batch, keys, WIDTH), draw.array(batch, keys, values)],
        "heads": [draw.array(batch, queries, WIDTH), *(draw.array(batch, HEADS, keys, SIZE) for _ in range(2))],
        "packed keys and values": [draw.array(batch, queries, WIDTH), draw.array(batch, keys, HEADS, 2, SIZE), None],
    }[form]
    total = keys + past
    hidden = draw.choice(["none", "keys", "places"])
    padding = None
    if hidden != "none":
        padding = draw.indices(0, 2, (batch, total) if hidden == "keys" else (batch, queries, total)).astype(np.int32)
        padding[..., 0] = 1
    added = draw.array(draw.choice([1, batch]), HEADS, queries, total) if draw.flag(0.3) else None
    states = [draw.array(batch, HEADS, past, SIZE) for _ in range(2)] if past else [None, None]
    bias = draw.array(2 * WIDTH + values) if biased else None
    settings = attributes(
        num_heads=HEADS, scale=draw.choice([None, 0.4]), unidirectional=draw.choice([None, None, 1]),
        mask_filter_value=draw.choice([None, -1000.0]),
    )  # fmt: skip
    return _node("MultiHeadAttention", [*tensors, bias, padding, added, *states], settings, 3 if past else 1)


@node.share(3)
def grouped_attention(draw: Draw) -> Node:
    """GroupQueryAttention with a past, rotation, a window, a soft cap; keys apart or packed."""
    batch, few = draw.integer(1, 3), draw.choice([1, 2])
    past = draw.choice([0, 0, 3])
    length = draw.integer(2, 4) if not past else 1
    total, size = length + past, 16
    packed, rotary = draw.flag(0.3), draw.flag()
    # What lies behind a sequence's end is anything, so all end together.
    ends = np.full(batch, total - 1, np.int32)
    heads = [2 * few, few, few]
    tensors = [draw.array(batch, length, count * size) for count in heads]
    if packed:
        tensors = [np.concatenate(tensors, -1), None, None]
    states = [draw.array(batch, few, past, size) for _ in range(2)] if past else [None, None]
    tables = [draw.array(8, size // 2) for _ in range(2)] if rotary else [None, None]
    settings = attributes(
        num_heads=heads[0], kv_num_heads=few, do_rotary=int(rotary) or None, scale=draw.choice([None, 0.3]),
        rotary_interleaved=draw.choice([0, 1]) if rotary else None, softcap=draw.choice([None, None, 2.0]),
        local_window_size=draw.choice([None, None, 2]), smooth_softmax=draw.choice([None, None, 1]),
    )  # fmt: skip
    inputs = [*tensors, *states, ends, np.array(total, np.int32), *tables]
    return _node("GroupQueryAttention", inputs, settings, 3)


@node.share(2)
def rotary(draw: Draw) -> Node:
    """RotaryEmbedding of rows or heads, whole or in part, of places or from an offset."""
    batch, length = draw.sizes(2, 1, 4)
    of_heads, part = draw.flag(), draw.flag(0.3)
    half = 1 if part else SIZE // 2
    shape = (batch, HEADS, length, SIZE) if of_heads else (batch, length, WIDTH)
    places = draw.indices(0, 8, (batch, length)) if draw.flag() else np.array([draw.integer(0, 4)])
    settings = attributes(
        interleaved=draw.choice([0, 1]), rotary_embedding_dim=2 if part else None,
        num_heads=HEADS if part or not of_heads else None, scale=None,
    )  # fmt: skip
    return _node("RotaryEmbedding", [draw.array(*shape), places, draw.array(8, half), draw.array(8, half)], settings)
