"""Windows as long as a size says are eager PyTorch's, by one capture for all sizes."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.signal import windows

from ontrain.capture.windows import WINDOWS
from ontrain.training.ortmodule import ORTModule

CASES = {
    **{window.__name__: window for window in WINDOWS},
    **{f"{window.__name__}, symmetric": lambda n, window=window: window(n, periodic=False) for window in WINDOWS},
    "hamming_window of two numbers": lambda n: torch.hamming_window(n, True, 0.6, beta=0.3),
    "kaiser_window of beta": lambda n: torch.kaiser_window(n, periodic=False, beta=5.0),
    "hann of torch.signal": windows.hann,
    "gaussian of torch.signal": lambda n: windows.gaussian(n, std=2.0, sym=False),
    "exponential of torch.signal": windows.exponential,
}


class Windowed(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.layer, self.function = nn.Linear(4, 4, dtype=torch.float64), function

    def forward(self, x):
        weights = self.function(x.shape[0] // 2)
        assert weights.dtype is torch.get_default_dtype()
        return (self.layer(x)[: weights.shape[0]] * weights[:, None]).square().sum()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CASES)
def test_windows_are_eagers(name):
    eager = Windowed(CASES[name])
    ours = ORTModule(copy.deepcopy(eager))
    for count in (10, 15, 4):
        x = torch.randn(count, 4, dtype=torch.float64)
        for module in (ours, eager):
            module.zero_grad()
            module(x).backward()
        torch.testing.assert_close(ours.module.layer.weight.grad, eager.layer.weight.grad, rtol=1e-6, atol=1e-6)
    assert ours._engine.captures == 1


def test_a_window_of_one_is_one():
    eager = Windowed(lambda n: torch.hann_window(n, periodic=False))
    ours = ORTModule(copy.deepcopy(eager))
    for count in (10, 2):
        x = torch.randn(count, 4, dtype=torch.float64)
        torch.testing.assert_close(ours(x), eager(x), rtol=1e-6, atol=1e-6)
