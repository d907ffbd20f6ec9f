"""Hooks that forward registers on its parts in the first call are there afterwards, as in eager PyTorch."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn

from ontrain.training.ortmodule import ORTModule


class Collecting(nn.Module):
    """Collects what its layers return by hooks, which it registers when it is called for the first time."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3, dtype=torch.float64) for _ in range(2))
        self.is_hooked, self.collected = False, []

    def forward(self, x):
        if not self.is_hooked:
            for layer in self.layers:
                layer.register_forward_hook(lambda layer, args, result: self.collected.append(result))
            self.is_hooked = True
        self.collected = []
        for layer in self.layers:
            x = layer(x).tanh()
        return self.collected[0].sum() * x.sum() if self.training else self.collected[-2]


@pytest.fixture
def pair():
    eager = Collecting()
    return eager, ORTModule(copy.deepcopy(eager))


def test_the_next_capture_finds_them(pair):
    for training in (True, False, True):
        results = [module.train(training)(torch.ones(2, 3, dtype=torch.float64)) for module in pair]
        torch.testing.assert_close(*results)


def test_the_module_itself_finds_them(pair):
    eager, ours = pair
    for rows in (2, 3):
        x = torch.randn(rows, 3, dtype=torch.float64)
        torch.testing.assert_close(ours(x), eager(x))
    assert [len(layer._forward_hooks) for layer in ours.module.layers] == [1, 1]
    torch.testing.assert_close(ours.module(x), eager(x))


def test_they_are_a_part_of_forward_and_no_surprise(pair):
    _, ours = pair
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*forward hooks of submodule")
        for training in (True, False):
            ours.train(training)(torch.ones(2, 3, dtype=torch.float64))
