"""A forward that has gradients recorded for itself has them recorded where its caller says otherwise."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from ontrain.training.ortmodule import ORTModule


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return self.layer(x).tanh()


class Enabled(Plain):
    @torch.enable_grad()
    def forward(self, x):
        return super().forward(x)


class Set(Plain):
    @torch.set_grad_enabled(True)
    def forward(self, x):
        return super().forward(x)


class Outer(Plain):
    @torch.no_grad()
    @torch.enable_grad()
    def forward(self, x):
        return super().forward(x)


class Inner(Plain):
    @torch.enable_grad()
    @torch.no_grad()
    def forward(self, x):
        return super().forward(x)


@pytest.mark.parametrize("kind", [Plain, Enabled, Set, Outer, Inner])
@pytest.mark.parametrize("around", [torch.no_grad, torch.enable_grad])
def test_results_want_gradients_where_eagers_do(kind, around):
    eager = kind()
    ours = ORTModule(copy.deepcopy(eager))
    for rows in (2, 3, 2):
        x = torch.randn(rows, 3)
        with around():
            expected, actual = eager(x), ours(x)
        torch.testing.assert_close(actual, expected)
        assert actual.requires_grad == expected.requires_grad
        if expected.requires_grad:
            gradients = [torch.autograd.grad(y.sum(), m.parameters()) for y, m in ((actual, ours), (expected, eager))]
            torch.testing.assert_close(*gradients)
