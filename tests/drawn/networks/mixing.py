"""Blocks that mix rows, or sequences: attention, recurrences, means, orders."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.drawn.networks.parts import WIDTH, block, uses

HEADS = 2


def _heads(layers, hidden):
    """Queries, keys and values, (B, HEADS, S, WIDTH // HEADS) each."""
    count, length, _ = hidden.shape
    return layers.triple(hidden).view(count, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)


def _joined(layers, heads, shape):
    """Heads beside one another, and a projection if the block has it."""
    outputs = heads.transpose(1, 2).reshape(shape)
    return layers.linear(outputs) if layers.projects else outputs


@block.share(2)
@uses("triple", "linear")
def attention(layers, hidden, mask):
    """PyTorch's attention with a mask of numbers, of truth, or of truth and causal."""
    query, key, content = _heads(layers, hidden)
    masking = (1 - mask[:, None, None, :].to(hidden.dtype)) * torch.finfo(hidden.dtype).min
    if layers.variant:
        masking = mask[:, None, None, :].bool()
    if layers.variant == 2:
        masking = masking & torch.ones(mask.shape[1], mask.shape[1], dtype=torch.bool).tril()
    outputs = F.scaled_dot_product_attention(query, key, content, attn_mask=masking)
    # A causal row of nothing but padding has no mean.
    return _joined(layers, torch.nan_to_num(outputs) if layers.variant == 2 else outputs, hidden.shape)


@block.share(2)
@uses("triple", "linear")
def written_attention(layers, hidden, mask):
    """Attention in products and softmax, padding at -1e4 or -1e9."""
    query, key, content = _heads(layers, hidden)
    scores = query @ key.transpose(-1, -2) / 2
    scores = scores.masked_fill(mask[:, None, None, :] == 0, -1e4 if layers.variant else -1e9)
    return _joined(layers, scores.softmax(-1) @ content, hidden.shape)


@block
def similarity(layers, hidden, mask):
    """Attention of rows to rows, padding among them."""
    return torch.einsum("bsh,bth->bst", hidden, hidden).softmax(-1) @ hidden


@block
@uses("convolution")
def convolution(layers, hidden, mask):
    """Of three rows."""
    return layers.convolution(layers.masked(hidden, mask).transpose(1, 2)).transpose(1, 2)


@block
@uses("recurrence")
def recurrence(layers, hidden, mask):
    """A GRU."""
    return layers.recurrence(hidden)[0]


@block
@uses("batch_norm")
def batch_norm(layers, hidden, mask):
    """Statistics over all rows, of (B, WIDTH, S) or of (B * S, WIDTH)."""
    if layers.variant:
        return layers.batch_norm(hidden.transpose(1, 2)).transpose(1, 2)
    return layers.batch_norm(hidden.reshape(-1, WIDTH)).view(hidden.shape)


@block
def running_sum(layers, hidden, mask):
    """A tenth of the sum so far."""
    return torch.cumsum(layers.masked(hidden, mask), 1) * 0.1


@block
def mean(layers, hidden, mask):
    """The mean of a sequence, or of its tokens, is added."""
    if not layers.masks:
        return hidden + hidden.mean(1, keepdim=True)
    count = mask.to(hidden.dtype).sum(1)[:, None, None].clamp(min=1)
    return hidden + layers.masked(hidden, mask).sum(1, keepdim=True) / count


@block
def mean_of_batch(layers, hidden, mask):
    """The mean of all rows is taken away."""
    return hidden - hidden.mean((0, 1), keepdim=True) * layers.scale


@block
def spread(layers, hidden, mask):
    """A sequence is divided by its standard deviation."""
    return hidden / (hidden.std((1, 2), keepdim=True) + 1)


@block
def first(layers, hidden, mask):
    """The first row is added to all."""
    return hidden + hidden[:, :1] * layers.scale


@block
def largest(layers, hidden, mask):
    """The largest numbers of a sequence are added."""
    return hidden + hidden.amax(1, keepdim=True)


@block
def order(layers, hidden, mask):
    """Numbers of a sequence in their order."""
    return hidden.sort(1)[0] * layers.scale


@block
def softmax(layers, hidden, mask):
    """Over a sequence or over a batch."""
    return hidden.softmax(1 if layers.variant else 0)
