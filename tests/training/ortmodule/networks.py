"""Small modules, and what compares an ORTModule with the module it wraps."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from ontrain.training.ortmodule import ORTModule


class Perceptron(nn.Module):
    """Two linear layers, normalised between: every kind of state that a module has."""

    def __init__(self, inputs: int = 6, hidden: int = 8, outputs: int = 3, dropout: float = 0.0) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, hidden)
        self.norm = nn.BatchNorm1d(hidden)
        self.dropout = nn.Dropout(dropout)
        self.second = nn.Linear(hidden, outputs)

    def forward(self, x, scale=None):
        hidden = self.dropout(torch.tanh(self.norm(self.first(x))))
        return self.second(hidden if scale is None else hidden * scale)


class Block(nn.Module):
    """A transformer block with causal attention."""

    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class LanguageModel(nn.Module):
    """Embedding, blocks, a head tied to the embedding; returns (loss, logits)."""

    def __init__(self, words: int = 20, width: int = 16, layers: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids, labels=None):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        logits = self.head(x)
        if labels is None:
            return logits
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits


def pair(module: nn.Module) -> tuple[ORTModule, nn.Module]:
    """Return the module wrapped, and an eager twin with equal weights."""
    twin = copy.deepcopy(module)
    return ORTModule(module), twin


def gradients(module: nn.Module) -> dict[str, torch.Tensor | None]:
    return {name: None if p.grad is None else p.grad.clone() for name, p in module.named_parameters()}


def assert_same_gradients(ours: nn.Module, eager: nn.Module, **tolerance: Any) -> None:
    mine, theirs = gradients(ours), gradients(eager)
    assert mine.keys() == theirs.keys()
    assert any(g is not None for g in theirs.values()), "nothing to compare"
    for name, want in theirs.items():
        have = mine[name]
        assert (have is None) == (want is None), f"{name}: {'no' if have is None else 'a'} gradient, unlike eager"
        if want is not None:
            torch.testing.assert_close(have, want, msg=lambda text, name=name: f"{name}: {text}", **tolerance)
