"""Encoders whose masks come in other forms than BERT's, and masks that no tokenizer makes."""

from __future__ import annotations

import io
import warnings

import numpy as np
import torch
from torch import nn

WIDTH, HEADS, SEQUENCES, LENGTH = 128, 4, 6, 24
DTYPES = {"int64": torch.int64, "int32": torch.int32, "bool": torch.bool, "float32": torch.float32}


def scores_added(mask, dtype):
    """0 where a token is seen and the least number where it is not, as transformers writes it."""
    return (1.0 - mask.to(dtype)) * torch.finfo(dtype).min


class Layer(nn.Module):
    """Attention and a perceptron behind it. `hides` says how a mask [sequence, token] acts on scores."""

    def __init__(self, hides: str):
        super().__init__()
        self.hides = hides
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x, mask):
        def heads(value):
            return value.reshape(x.shape[0], x.shape[1], HEADS, WIDTH // HEADS).transpose(1, 2)

        q, k, v = heads(self.q(x)), heads(self.k(x)), heads(self.v(x))
        if self.hides == "sdpa":
            context = nn.functional.scaled_dot_product_attention(q, k, v, mask.bool()[:, None, None, :])
        else:
            scores = q @ k.transpose(2, 3) / (WIDTH // HEADS) ** 0.5
            seen = mask[:, None, None, :]
            if self.hides == "added":
                scores = scores + scores_added(seen, x.dtype)
            elif self.hides == "billion":
                scores = scores + (1.0 - seen.to(x.dtype)) * -1e9
            elif self.hides == "thousands":
                scores = scores + (1.0 - seen.to(x.dtype)) * -10000.0
            elif self.hides == "filled":
                scores = scores.masked_fill(seen == 0, float("-inf"))
            elif self.hides == "where":
                scores = torch.where(seen.bool(), scores, torch.full_like(scores, -1e9))
            elif self.hides == "square":
                both = seen.to(x.dtype) * mask[:, None, :, None].to(x.dtype)
                scores = scores + (1.0 - both) * torch.finfo(x.dtype).min
            elif self.hides == "given":
                scores = scores + seen
            context = torch.softmax(scores, -1) @ v
        x = self.first(x + self.o(context.transpose(1, 2).reshape(x.shape)))
        return self.second(x + self.down(nn.functional.gelu(self.up(x))))


class Masked(nn.Module):
    """Two layers and what is read of them.

    Args:
        hides: see `Layer`.
        masks: which of two masks each layer takes: "aa", "ab", "a-" for a second layer that sees everything.
        reads: "states", the "first" token, the "mean" over mask a, the "mean of b" over mask b, the "last" token of
            mask a, the "sum" over all tokens, or the "largest" by place.
    """

    def __init__(self, hides="added", masks="aa", reads="mean"):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(50, WIDTH)
        self.layers = nn.ModuleList(Layer(hides) for _ in masks)
        self.masks, self.reads = masks, reads

    def forward(self, ids, a, b):
        x = self.embedding(ids)
        for layer, name in zip(self.layers, self.masks, strict=True):
            x = layer(x, {"a": a, "b": b, "-": torch.ones_like(a)}[name])
        weight = {"mean": a, "mean of b": b}.get(self.reads)
        if weight is not None:
            weight = weight.unsqueeze(-1).to(x.dtype)
            return (x * weight).sum(1) / weight.sum(1).clamp(min=1e-9) + 0 * b.to(x.dtype).sum()
        x = x + 0 * b.to(x.dtype).sum()
        if self.reads == "first":
            return torch.tanh(x[:, 0])
        if self.reads == "last":
            last = (a.to(torch.int64).sum(1) - 1).clamp(min=0)
            return x[torch.arange(x.shape[0]), last]
        return {"states": x, "sum": x.sum(1), "largest": x.amax(1)}[self.reads]


def file_of(module: nn.Module, dtype: str, opset: int = 17) -> bytes:
    """The file that torch's exporter makes; sequences and their length vary."""
    ids, mask = torch.ones(SEQUENCES, LENGTH, dtype=torch.int64), torch.ones(SEQUENCES, LENGTH).to(DTYPES[dtype])
    names, target = ["ids", "a", "b"], io.BytesIO()
    axes = {name: {0: "batch", 1: "length"} for name in names}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module.eval(), (ids, mask, mask), target, dynamo=False, opset_version=opset, input_names=names,
            output_names=["y"], dynamic_axes=axes,
        )  # fmt: skip
    return target.getvalue()


def prefix(rng, rows=SEQUENCES, length=LENGTH):
    return np.arange(length)[None] < rng.integers(1, length + 1, rows)[:, None]


MASKS = {
    "prefix": prefix,
    "left": lambda rng: prefix(rng)[:, ::-1],
    "holes": lambda rng: rng.random((SEQUENCES, LENGTH)) < 0.5,
    "few": lambda rng: rng.random((SEQUENCES, LENGTH)) < 0.08,
    "an empty row": lambda rng: prefix(rng) & (np.arange(SEQUENCES) != rng.integers(SEQUENCES))[:, None],
    "nothing": lambda rng: np.zeros((SEQUENCES, LENGTH), bool),
    "everything": lambda rng: np.ones((SEQUENCES, LENGTH), bool),
    "middle": lambda rng: prefix(rng) & ~prefix(rng)[:, ::-1],
}
"""Masks [sequence, token] by what they look like; True is seen."""


def feeds_of(rng: np.random.Generator, a: np.ndarray, b: np.ndarray, dtype: str) -> dict[str, np.ndarray]:
    """A batch whose padding holds other tokens everywhere."""
    ids = rng.integers(0, 50, a.shape)
    return {"ids": ids, "a": a.astype(dtype), "b": b.astype(dtype)}
