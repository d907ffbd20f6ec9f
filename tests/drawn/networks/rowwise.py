"""Blocks that leave rows apart, or move them as wholes."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.drawn.networks.parts import WIDTH, block, uses


@block
@uses("linear")
def linear(layers, hidden, mask):
    """A projection and GELU."""
    return F.gelu(layers.linear(hidden))


@block
@uses("norm")
def norm(layers, hidden, mask):
    """Layer normalization."""
    return layers.norm(hidden)


@block
@uses("linear")
def gated(layers, hidden, mask):
    """A projection times a gate."""
    return layers.linear(hidden) * torch.sigmoid(hidden * layers.scale)


@block
@uses("linear")
def sequence_first(layers, hidden, mask):
    """A projection of (S, B, WIDTH)."""
    return layers.linear(hidden.transpose(0, 1)).relu().transpose(0, 1)


@block
@uses("linear")
def flat(layers, hidden, mask):
    """A projection of (B * S, WIDTH)."""
    return layers.linear(hidden.reshape(-1, WIDTH)).tanh().reshape(hidden.shape)


@block
def masked(layers, hidden, mask):
    """Padding at 0, by a product."""
    return hidden * mask.to(hidden.dtype).unsqueeze(-1)


@block
def filled(layers, hidden, mask):
    """Padding at a number, by masked_fill."""
    return hidden.masked_fill(mask[..., None] == 0, layers.variant * 0.5)


@block
@uses("linear")
def where(layers, hidden, mask):
    """A projection of tokens; padding is a parameter, or passes on no gradient."""
    other = hidden.detach() if layers.variant else layers.scale
    return torch.where(mask.bool()[..., None], layers.linear(hidden), other)


@block
def halves(layers, hidden, mask):
    """Halves of the width change places."""
    first, second = hidden.chunk(2, -1)
    return torch.cat([second * 2, first.tanh()], -1)


@block
@uses("linear")
def einsum(layers, hidden, mask):
    """A projection written as einsum."""
    return torch.einsum("bsh,hk->bsk", hidden, layers.linear.weight)


@block
@uses("linear", "triple")
def experts(layers, hidden, mask):
    """Each row goes to one of two experts, and is weighed by its share."""
    shares = layers.triple(hidden)[..., :2].softmax(-1)
    chosen = shares.argmax(-1, keepdim=True)
    outputs = torch.where(chosen == 0, layers.linear(hidden), hidden * layers.scale)
    return outputs * shares.gather(-1, chosen)


@block
def written(layers, hidden, mask):
    """The first row is written in place, and padding likewise."""
    first = hidden[:, 0] * layers.scale
    outputs = hidden.clone()
    outputs[:, 0] = first
    outputs[mask == 0] = 0.0
    return outputs


@block
@uses("linear")
def packed(layers, hidden, mask):
    """Tokens are taken out, projected, and put back between zeros."""
    tokens = mask.bool()
    return hidden.new_zeros(hidden.shape).masked_scatter(tokens[..., None], layers.linear(hidden[tokens]))


@block
@uses("positions")
def positions(layers, hidden, mask):
    """Embeddings of places, or of places among tokens."""
    places = torch.arange(mask.shape[1]) if layers.variant else mask.long().cumsum(1) * mask.long()
    return hidden + layers.positions(places)


@block
def rolled(layers, hidden, mask):
    """The row before, the last one in front."""
    return torch.roll(hidden, 1, 1) * layers.scale


@block
@uses("linear")
def shifted(layers, hidden, mask):
    """The row before, zeros in front."""
    return torch.cat([hidden[:, :1] * 0, hidden[:, :-1]], 1) + layers.linear(hidden)


@block
def indexed(layers, hidden, mask):
    """The row before, by an index."""
    return hidden[:, torch.arange(mask.shape[1]).roll(1)]


@block
def flipped(layers, hidden, mask):
    """Rows from the last to the first."""
    return hidden.flip(1) * layers.scale


@block
def swapped(layers, hidden, mask):
    """Sequences from the last to the first."""
    return hidden[torch.arange(mask.shape[0]).flip(0)] * layers.scale
