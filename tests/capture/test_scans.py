"""torch's scan becomes a Scan; associative scans become what torch makes of them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.scan import scan

from ontrain.capture import capture
from ontrain.training.ortmodule import ORTModule
from tests.capture.harness import operators

DOUBLE = dict(rtol=1e-9, atol=1e-11)


class Recurrent(nn.Module):
    """A layer over time, from a first state that trains."""

    def __init__(self, dim: int = 0, *, reverse: bool = False):
        super().__init__()
        self.layer, self.start = nn.Linear(4, 4), nn.Parameter(torch.randn(4))
        self.dim, self.reverse = dim, reverse

    def forward(self, x):
        def step(h, row):
            h = torch.tanh(self.layer(h) + row)
            return h, {"twice": h * 2, "sum": h.sum()}

        start = self.start.expand(x.shape[1 - self.dim], 4).contiguous()
        return scan(step, start, x, dim=self.dim, reverse=self.reverse)


class Nested(nn.Module):
    """A scan of scans, over two tensors at once."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        def inner(h, row):
            return h * 0.9 + row, h.sin()

        def outer(h, rows):
            last, ys = scan(inner, h, rows[0].unsqueeze(0).expand(2, -1, -1).contiguous())
            return last * rows[1], ys.sum(0)

        return scan(outer, torch.zeros_like(x[0]), (self.layer(x), x))


class Associative(nn.Module):
    """h ← a·h + x for all rows at once."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        def combined(left, right):
            return right[0] * left[0], right[0] * left[1] + right[1]

        return associative_scan(combined, (torch.sigmoid(self.layer(x)), x), dim=0, combine_mode="generic")[1]


def _trained(module, x):
    """The module's results and gradients."""
    leaf = x.clone().requires_grad_()
    module.zero_grad()
    results = torch.utils._pytree.tree_leaves(module(leaf))
    sum(y.sin().sum() for y in results).backward()
    return *results, leaf.grad, *(parameter.grad for parameter in module.parameters())


@pytest.mark.parametrize(
    "module", [Recurrent(), Recurrent(reverse=True), Recurrent(dim=1), Nested(), Associative()],
    ids=["forward", "reverse", "columns", "nested", "associative"],
)  # fmt: skip
@pytest.mark.sampled(4)
def test_a_scan_trains_as_eagers(module):
    if isinstance(module, Nested) and torch.__version__ < (2, 12):
        pytest.skip("torch 2.11 cannot differentiate a scan of scans itself")
    eager = copy.deepcopy(module).double()
    ours = ORTModule(copy.deepcopy(eager))
    for length in (5, 2, 7):
        x = torch.randn(length, 3, 4, dtype=torch.float64)
        torch.testing.assert_close(_trained(ours, x), _trained(eager, x), **DOUBLE)


def test_one_capture_runs_scans_of_any_length():
    ours = ORTModule(Recurrent())
    for length in (5, 2, 7):
        ours(torch.randn(length, 3, 4))
    assert ours._engine.captures == 1


def test_a_scan_is_one_operator():
    captured = capture(Recurrent().double(), (torch.ones(5, 3, 4, dtype=torch.float64),))
    assert operators(captured)["Scan"] == 1
