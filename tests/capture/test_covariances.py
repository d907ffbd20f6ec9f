"""Covariances and correlations train as in eager PyTorch, by one capture for all numbers of observations."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from ontrain.training.ortmodule import ORTModule

CASES = {
    "covariance": torch.cov,
    "by the number itself": lambda x: torch.cov(x, correction=0),
    "of too few": lambda x: x.cov(correction=50),
    "of one variable": lambda x: x[0].cov(),
    "of repeated observations": lambda x: torch.cov(x, fweights=torch.arange(x.shape[1])),
    "of weighted observations": lambda x: x.cov(aweights=_weights(x)),
    "of both": lambda x: torch.cov(x, fweights=torch.arange(x.shape[1]), aweights=_weights(x)),
    "of both by the number itself": lambda x: x.cov(correction=0, fweights=_once(x), aweights=_weights(x)),
    "of one weighted variable": lambda x: x[0].cov(aweights=_weights(x)),
    "of too few weighted ones": lambda x: x.cov(correction=50, fweights=_once(x)),
    "correlation": torch.corrcoef,
    "of one variable with itself": lambda x: x[0].corrcoef(),
}


def _weights(x):
    return x.abs().sum(0)


def _once(x):
    return torch.ones(x.shape[1], dtype=torch.int64)


class Weighed(nn.Module):
    def __init__(self, function, dtype):
        super().__init__()
        self.scale, self.function = nn.Parameter(torch.tensor([0.5, 1.5, -1.0], dtype=dtype)), function

    def forward(self, x):
        y = self.function((x * self.scale[:, None]).sin())
        y = torch.view_as_real(y) if y.is_complex() else y
        return (y * torch.arange(1.0, 1 + y.numel(), dtype=y.dtype).reshape(y.shape)).sum()


@pytest.mark.sampled(3)
@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_eagers(name, dtype):
    eager = Weighed(CASES[name], dtype)
    ours = ORTModule(copy.deepcopy(eager))
    for count in (7, 9, 2):
        x = torch.randn(3, count, dtype=dtype)
        losses = [module(x) for module in (ours, eager)]
        torch.testing.assert_close(*losses, equal_nan=True)
        for module, loss in zip((ours, eager), losses, strict=True):
            module.zero_grad()
            loss.backward()
        torch.testing.assert_close(ours.module.scale.grad, eager.scale.grad, rtol=1e-9, atol=1e-9, equal_nan=True)
    assert ours._engine.captures == 1
