"""Batches without rows, steps or sequences have eager's results and gradients, before others and after."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ontrain.training.ortmodule import ORTModule
from tests.training.ortmodule.networks import assert_same_gradients, pair

LAYERS = {
    "linear": lambda: nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 4)),
    "norm": lambda: nn.LayerNorm(4),
    "bilinear": lambda: nn.Bilinear(4, 4, 3),
    "attention": lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0),
    "lstm": lambda: nn.LSTM(4, 4, 2, bidirectional=True),
    "lstm with a projection": lambda: nn.LSTM(4, 4, proj_size=2),
    "gru": lambda: nn.GRU(4, 4),
    "gru of two layers": lambda: nn.GRU(4, 4, 2, bidirectional=True, batch_first=True),
    "rnn": lambda: nn.RNN(4, 4),
}
RECURRENT = {name for name in LAYERS if "lstm" in name or "rnn" in name or "gru" in name}


class Called(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        y = self.layer(x, x) if isinstance(self.layer, nn.Bilinear) else self.layer(x)
        return y[0] if isinstance(y, tuple) else y


@pytest.mark.sampled(6)
@pytest.mark.parametrize("empty_first", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_a_batch_may_be_empty(name, empty_first):
    ours, eager = pair(Called(LAYERS[name]()).double())
    batch_first = getattr(ours.module.layer, "batch_first", False)
    empty = [(0, 5, 4) if batch_first else (5, 0, 4)] + ([] if name in RECURRENT else [(0, 5, 4)])
    for shape in [*empty, (5, 2, 4), (5, 3, 4)] if empty_first else [(5, 2, 4), (5, 3, 4), *empty]:
        x = torch.randn(shape, dtype=torch.float64)
        for module in (ours, eager):
            module.zero_grad()
        torch.testing.assert_close(ours(x), eager(x), rtol=1e-10, atol=1e-12)
        ours(x).square().sum().backward()
        eager(x).square().sum().backward()
        assert_same_gradients(ours, eager, rtol=1e-10, atol=1e-12)


class TruthOfNone(nn.Module):
    def forward(self, x, mask):
        return 2 * x * mask.any(1, keepdim=True) + 3 * x * mask.all(1, keepdim=True) + x * mask.any()


@pytest.mark.parametrize("columns", [0, 1, 2])
def test_none_of_no_elements_is_true_and_all_of_them_are(columns):
    x, mask = torch.randn(3, 4, dtype=torch.float64), torch.tensor([[False, True], [False, False], [True, True]])
    leaves = x.clone().requires_grad_(), x.clone().requires_grad_()
    for module, leaf in zip((TruthOfNone(), ORTModule(TruthOfNone())), leaves, strict=True):
        module(leaf, mask[:, :columns]).square().sum().backward()
    torch.testing.assert_close(leaves[1].grad, leaves[0].grad, rtol=1e-9, atol=1e-9)
