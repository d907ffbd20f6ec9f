"""Small training runs whose loss curves are kept: `python -m tests.golden.cases` writes them anew, in eager PyTorch.

The curves come from eager PyTorch alone, so they judge ontrain without having been made by it. A refactoring leaves
them as they are; a change of numerics has to say why.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ontrain.training import optim

FOLDER = Path(__file__).parent
STEPS = 60


@dataclass(frozen=True)
class Case:
    """A model whose forward gives (loss,) for its inputs, a stream of batches and one optimizer in both dialects."""

    model: Callable[[], nn.Module]
    batch: Callable[[torch.Generator], list[torch.Tensor]]
    config: Callable[[], Any]
    optimizer: Callable[[Any], torch.optim.Optimizer]
    clip: float | None
    dims: list[list[int | str]]


class TextModel(nn.Module):
    """One transformer layer over characters."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 24)
        self.position = nn.Embedding(16, 24)
        self.layer = nn.TransformerEncoderLayer(24, 3, 48, dropout=0.0, batch_first=True)
        self.head = nn.Linear(24, 32)

    def forward(self, ids: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        length = ids.shape[1]
        x = self.embed(ids) + self.position.weight[:length]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        x = self.layer(x, src_mask=mask, is_causal=True)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), label.flatten(), ignore_index=0)


class ImageModel(nn.Module):
    """Convolutions and batch normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(6, 8, 3, stride=2), nn.BatchNorm2d(8), nn.GELU(), nn.Flatten(), nn.Linear(32, 4),
        )  # fmt: skip

    def forward(self, x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.body(x), label)


class Regression(nn.Module):
    """A gated residual network for numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.value, self.out = nn.Linear(6, 12), nn.Linear(6, 12), nn.Linear(12, 1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = torch.sigmoid(self.gate(x)) * nn.functional.silu(self.value(x))
        return nn.functional.mse_loss(self.out(h).squeeze(1), y)


def _text(g: torch.Generator) -> list[torch.Tensor]:
    ids = torch.randint(1, 8, (4, 13), generator=g).cumsum(1) % 32
    return [ids[:, :-1].contiguous(), ids[:, 1:].contiguous()]


def _images(g: torch.Generator) -> list[torch.Tensor]:
    label = torch.randint(0, 4, (8,), generator=g)
    x = torch.randn(8, 1, 12, 12, generator=g)
    x[torch.arange(8), 0, label * 3] += 2.0
    return [x, label]


def _numbers(g: torch.Generator) -> list[torch.Tensor]:
    x = torch.randn(16, 6, generator=g)
    return [x, x[:, 0] * x[:, 1] + x[:, 2].abs()]


CASES = {
    "text-adamw": Case(
        TextModel, _text, lambda: optim.AdamConfig(lr=1e-2, lambda_coef=0.01),
        lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.01), 1.0, [["b", "s"], ["b", "s"]],
    ),
    "images-momentum": Case(
        ImageModel, _images, lambda: optim.SGDConfig(lr=0.02, momentum=0.9, weight_decay=1e-3),
        lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9, weight_decay=1e-3), None, [["n", 1, 12, 12], ["n"]],
    ),
    "numbers-adam": Case(
        Regression, _numbers, lambda: optim.AdamConfig(lr=1e-2),
        lambda p: torch.optim.Adam(p, lr=1e-2), 1.0, [["n", 6], ["n"]],
    ),
}  # fmt: skip


def fresh(case: Case) -> tuple[nn.Module, list[list[torch.Tensor]]]:
    """The model at its start and the batches."""
    torch.manual_seed(11)
    model = case.model().train()
    generator = torch.Generator().manual_seed(12)
    return model, [case.batch(generator) for _ in range(STEPS)]


def eager(case: Case) -> list[float]:
    """The loss curve of eager PyTorch."""
    model, data = fresh(case)
    optimizer = case.optimizer(model.parameters())
    curve = []
    for batch in data:
        loss = model(*batch)
        optimizer.zero_grad()
        loss.backward()
        if case.clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), case.clip)
        optimizer.step()
        curve.append(float(loss.detach()))
    return curve


if __name__ == "__main__":
    for name, case in CASES.items():
        rows = [round(loss, 7) for loss in eager(case)]
        (FOLDER / f"{name}.json").write_text(json.dumps({"torch": torch.__version__, "loss": rows}, indent=1) + "\n")
