"""Kernels that count on dense memory are right in whatever layout another leaves what they are computed of."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from ontrain.training.ortmodule import ORTModule


class Mixed(nn.Module):
    """A softmax over an axis of a product that einsum returns in another order, and einsum of its result."""

    def __init__(self, function, axis):
        super().__init__()
        self.one, self.other, self.function, self.axis = nn.Linear(4, 4), nn.Linear(4, 4), function, axis
        self.query = nn.Parameter(torch.randn(3, 4))

    def forward(self, x):
        v = torch.stack([self.one(x), self.other(x)])
        weights = self.function(torch.einsum("lbnd,sd->slbn", v, self.query), self.axis)
        return torch.einsum("slbn,lbnd->sbnd", weights, v).square().mean()


class Joined(Mixed):
    """Two softmaxes of the parts of one tensor, whose gradients are parts of one gradient."""

    def forward(self, x):
        y = torch.einsum("bnd,sd->snb", self.one(x), self.query)
        first, second = y.split([1, y.shape[1] - 1], 1)
        together = torch.cat([self.function(second, 1), self.function(first, 0)], 1)
        return torch.einsum("snb,bnd->sd", together, self.other(x)).square().mean()


class Grouped(Mixed):
    """A normalisation of groups, and one whose adjoint comes out of einsum."""

    def forward(self, x):
        y = torch.einsum("bnd,sd->bsn", self.one(x), torch.cat([self.query, self.other.weight[:1]]))
        y = nn.functional.group_norm(self.function(y, self.axis), 2) + nn.functional.group_norm(y, 4)
        return torch.einsum("bsn,bnd->sbd", y, self.other(x)).square().mean()


class Standardised(Mixed):
    """A normalisation of a batch, which reads what einsum returns and gives it its adjoint."""

    def forward(self, x):
        y = torch.einsum("bnd,sd->bsn", self.one(x), torch.cat([self.query, self.other.weight[:1]]))
        y = nn.functional.batch_norm(self.function(y, self.axis) + y, None, None, training=True) + y
        y = nn.functional.batch_norm(torch.einsum("bsn,bnd->dsb", y, self.other(x)), None, None, training=True)
        return torch.einsum("dsb,bnd->snb", y, self.other(x)).square().mean()


@pytest.mark.parametrize("kind", [Mixed, Joined, Grouped, Standardised])
@pytest.mark.parametrize("function", [torch.softmax, torch.log_softmax])
@pytest.mark.parametrize("axis", [1, -1])
@pytest.mark.sampled(4)
def test_a_softmax_between_products_in_other_orders_has_eagers_gradients(kind, function, axis):
    torch.manual_seed(0)
    eager = kind(function, axis).double()
    ours = ORTModule(copy.deepcopy(eager))
    for rows in (2, 3):
        x = torch.randn(rows, 5, 4, dtype=torch.float64)
        for module in (ours, eager):
            module.zero_grad()
            module(x).backward()
        for a, b in zip(ours.module.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-12, atol=1e-12)
