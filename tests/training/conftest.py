"""Small models with trainers on each provider."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from ontrain.training import ORTTrainer, optim

PROVIDERS = ("TorchExecutionProvider", "OnnxRuntimeExecutionProvider", "ReferenceExecutionProvider")


class Net(nn.Module):
    """Embedding, attention-free mixing, normalisation, dropout and a head tied to the embedding."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8, padding_idx=0)
        self.mix = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        return self.head(self.norm(x + self.drop(torch.tanh(self.mix(x)))))


def token_loss(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output.flatten(0, 1), label.flatten())


DESC = {
    "inputs": [("ids", ["batch", "length"]), ("label", ["batch", "length"])],
    "outputs": [("loss", [], True), ("output", ["batch", "length", 11])],
}


def batches(count: int, batch: int = 3, length: int = 5) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(4)
    data = []
    for _ in range(count):
        ids = torch.randint(0, 11, (batch, length), generator=generator)
        label = torch.randint(0, 11, (batch, length), generator=generator)
        label[:, 0] = -100
        data.append((ids, label))
    return data


def make_trainer(model: nn.Module, config=None, desc=None, loss_fn=token_loss, **options) -> ORTTrainer:
    # The validator is on: every captured graph is checked, and its outputs compared with eager's.
    sections = {"device": {"id": "cpu"}, "debug": {"check_model_export": True}, **options}
    return ORTTrainer(model, desc or DESC, config or optim.AdamConfig(lr=0.01), loss_fn=loss_fn, options=sections)


def eager_losses(model, optimizer, data, max_norm: float | None = 1.0) -> list[float]:
    losses = []
    for ids, label in data:
        loss = token_loss(model(ids), label)
        optimizer.zero_grad()
        loss.backward()
        if max_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


@pytest.fixture(params=PROVIDERS)
def provider(request) -> str:
    return request.param


@pytest.fixture
def twins() -> tuple[Net, Net]:
    """Two models with the same weights."""
    torch.manual_seed(3)
    model = Net()
    return model, copy.deepcopy(model)
