"""Roots of sizes and of numbers read off a tensor vary, and are Python's."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch

from ontrain.training.ortmodule import ORTModule
from tests.capture.test_number_types import Scaled, assert_eager

ROOTS = {
    "of a size": lambda y: y / math.sqrt(y.shape[1]),
    "of a share": lambda y: y / math.sqrt(y.shape[1] / 3),
    "of a number read": lambda y: y / math.sqrt(y.detach().square().mean().item()),
    "of numpy's": lambda y: y / np.sqrt(y.shape[1]),
    "of a number": lambda y: y / math.sqrt(3),
}


@pytest.mark.parametrize("name", ROOTS)
def test_roots_vary(name):
    eager = Scaled(ROOTS[name])
    ours = ORTModule(copy.deepcopy(eager))
    assert_eager(eager, ours)
    assert ours._engine.captures == 1


class Patched(Scaled):
    """Cuts rows into as many patches as the longest one has."""

    def forward(self, x, lengths):
        patches = math.floor((int(lengths.max()) + 1) / 2)
        rows = self.layer(x).new_zeros(x.shape[0], 2 * patches, 4)
        rows[:, :patches] = self.layer(x)[:, :1]
        return rows.view(x.shape[0], patches, 8).square().sum()


def test_a_size_that_is_a_quotient_of_a_number_read():
    eager = Patched(None)
    ours = ORTModule(copy.deepcopy(eager))
    for length in (5, 8, 4):
        x, lengths = torch.randn(3, length, 4, dtype=torch.float64), torch.tensor([1, length, 2])
        for module in (ours, eager):
            module.zero_grad()
            module(x, lengths).backward()
        torch.testing.assert_close(ours.module.layer.weight.grad, eager.layer.weight.grad)
