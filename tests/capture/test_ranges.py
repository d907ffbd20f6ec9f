"""Evenly spaced numbers are eager PyTorch's, by one capture for all sizes."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from ontrain.training.ortmodule import ORTModule

CASES = {
    "linspace": lambda n: torch.linspace(-1, 2.5, n),
    "linspace in single precision": lambda n: torch.linspace(3, -1, steps=n, dtype=torch.float32),
    "logspace": lambda n: torch.logspace(0, 1, n),
    "logspace of base 2": lambda n: torch.logspace(-1, 2, n, base=2.0, dtype=torch.float64),
    "linspace of sizes": lambda n: torch.linspace(-n, n / 2, n, dtype=torch.float64),
    "linspace up to a size": lambda n: torch.linspace(0, n - 1, 5, dtype=torch.float64),
    "logspace up to a share": lambda n: torch.logspace(0, 1 / n, n, dtype=torch.float64),
    "fftfreq": lambda n: torch.fft.fftfreq(n, dtype=torch.float64),
    "fftfreq of a distance": lambda n: torch.fft.fftfreq(2 * n, 0.3),
    "fftfreq of a number": lambda n: n * torch.fft.fftfreq(5, d=0.5),
    "rfftfreq": lambda n: torch.fft.rfftfreq(n, d=0.7, dtype=torch.float64),
    "range of numbers": lambda n: n * torch.range(-1, 2, 0.5),
}


class Weighed(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.layer, self.function = nn.Linear(4, 1, dtype=torch.float64), function

    def forward(self, x):
        numbers = self.function(x.shape[0])
        weights = 1.5 + torch.arange(1, 1 + numbers.numel(), dtype=numbers.dtype).sin()
        return (self.layer(x).mean() * numbers * weights).square().sum() + (numbers * weights).sum()


@pytest.mark.sampled(3)
@pytest.mark.filterwarnings("ignore:torch.range is deprecated")
@pytest.mark.parametrize("name", CASES)
def test_numbers_are_eagers(name):
    eager = Weighed(CASES[name])
    ours = ORTModule(copy.deepcopy(eager))
    for count in (4, 7, 2):
        x = torch.randn(count, 4, dtype=torch.float64)
        losses = [module(x) for module in (ours, eager)]
        assert losses[0].dtype is losses[1].dtype
        torch.testing.assert_close(*losses, rtol=1e-6, atol=1e-6)
        for module, loss in zip((ours, eager), losses, strict=True):
            module.zero_grad()
            loss.backward()
        torch.testing.assert_close(ours.module.layer.weight.grad, eager.layer.weight.grad, rtol=1e-6, atol=1e-6)
    assert ours._engine.captures == 1


def test_no_gradient_passes_to_limits_that_are_tensors():
    class Spaced(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4, dtype=torch.float64)

        def forward(self, x):
            y = self.layer(x)
            line = torch.linspace(y.min(), y.max().item(), 4, dtype=torch.float64)
            powers = torch.logspace(y.min(), y.max(), len(x), dtype=torch.float64)
            return (y * line * powers[:, None]).sum()

    eager = Spaced()
    ours = ORTModule(copy.deepcopy(eager))
    for count in (4, 7, 2):
        x = torch.randn(count, 4, dtype=torch.float64)
        for module in (ours, eager):
            module.zero_grad()
            module(x).backward()
        torch.testing.assert_close(ours.module.layer.weight.grad, eager.layer.weight.grad)
    assert ours._engine.captures == 1
