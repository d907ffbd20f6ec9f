"""Embeddings and bags of embeddings."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.drawn.draw import Draw
from tests.drawn.modules.module import Applied, Sample, sample

ROWS, WIDTH = 6, 4


@sample
def lookup(draw: Draw) -> Sample:
    """A table with padding, rows shortened in place, or gradients by frequency, and a product behind it."""
    layer = nn.Embedding(
        ROWS, WIDTH, padding_idx=draw.choice([None, 0, -2]), max_norm=draw.choice([None, None, 0.9]),
        norm_type=draw.choice([2.0, 1.0, 3.0]), scale_grad_by_freq=draw.flag(),
    )  # fmt: skip
    linear, rank = nn.Linear(WIDTH, 3), draw.integer(0, 3)
    module = Applied(lambda table, m, rows: m(table(rows)), layer, linear)
    return Sample(f"{layer} {rank}", module, lambda: [draw.labels(ROWS, *draw.sizes(rank, 1, 4))])


@sample
def tied(draw: Draw) -> Sample:
    """A table that scores its own rows, perhaps by another order of rows."""
    layer, order = nn.Embedding(ROWS, WIDTH, padding_idx=draw.maybe(1)), draw.flag()

    def function(table: nn.Module, rows: torch.Tensor) -> torch.Tensor:
        weight = table.weight.flip(0) if order else table.weight
        return (
            F.linear(table(rows).tanh(), weight) + F.one_hot(rows, ROWS).to(weight.dtype) @ table.weight.sum(1)[:, None]
        )

    return Sample(f"{layer} {order}", Applied(function, layer), lambda: [draw.labels(ROWS, *draw.sizes(2, 1, 4))])


@sample.share(2)
def bag(draw: Draw) -> Sample:
    """Bags as rows or by offsets, with weights, padding, and empty ones."""
    mode, square = draw.choice(["sum", "mean", "max"]), draw.flag()
    last = not square and draw.flag()
    weighs = mode == "sum" and draw.flag()
    layer = nn.EmbeddingBag(
        ROWS, WIDTH, mode=mode, padding_idx=draw.choice([None, 1]), include_last_offset=last,
        max_norm=draw.choice([None, None, 0.9]), scale_grad_by_freq=mode != "max" and draw.flag(0.2),
    )  # fmt: skip

    def function(m: nn.Module, rows: torch.Tensor, *others: torch.Tensor) -> Any:
        rest = list(others)
        weights = rest.pop() if weighs else None
        return m(rows, rest[0] if rest else None, weights)

    def inputs() -> list[torch.Tensor]:
        shape = draw.sizes(2, 1, 4) if square else (draw.integer(3, 8),)
        tensors = [draw.labels(ROWS, *shape)]
        if not square:
            middle = sorted(draw.integer(0, shape[0]) for _ in range(draw.integer(0, 3)))
            tensors.append(torch.tensor([0, *middle, *([shape[0]] if last else [])]))
        return [*tensors, draw.tensor(*shape)] if weighs else tensors

    return Sample(f"{layer} square={square} weighed={weighs}", Applied(function, layer), inputs)


@sample
def bilinear(draw: Draw) -> Sample:
    """Products of two inputs with a weight between."""
    layer, rank = nn.Bilinear(3, 2, WIDTH, bias=draw.flag()), draw.integer(0, 2)

    def inputs() -> list[torch.Tensor]:
        sizes = draw.sizes(rank, 1, 4)
        return [draw.tensor(*sizes, 3), draw.tensor(*sizes, 2)]

    return Sample(f"{layer} {rank}", layer, inputs)
