"""Constants that a module computes in single precision have the digits that eager PyTorch gives them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ontrain.training.ortmodule import ORTModule

FUNCTIONS = {
    "exp": torch.exp,
    "log": lambda x: torch.log(x.abs() + 1),
    "sin": torch.sin,
    "cos": torch.cos,
    "tan": torch.tan,
    "atan": torch.atan,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "erf": torch.erf,
    "sqrt": lambda x: x.abs().sqrt(),
    "a number to a power": lambda x: 10000 ** (-x / 7),
    "softplus": nn.functional.softplus,
    "gelu": nn.functional.gelu,
    "softmax": lambda x: x.softmax(-1),
    "cumsum": lambda x: x.cumsum(-1),
    "sine in half": lambda x: x.half().sin(),
    "sine in bfloat16": lambda x: x.bfloat16().sin(),
    "arange": lambda x: torch.arange(0, 4.5, 0.07)[:65] * x,
    "linspace": lambda x: torch.linspace(0.1, 3.3, 65) * x,
    "logspace": lambda x: torch.logspace(0, 3, 65) * x,
    "hann_window": lambda x: torch.hann_window(65) * x,
}


class Table(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, x):
        numbers = torch.arange(2 * 65, dtype=torch.float32).view(2, 65) * 0.37 - 21
        return x.sum() + self.weight * self.function(numbers).double()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_table_of_single_precision_has_torchs_digits(name):
    module, x = Table(FUNCTIONS[name]), torch.zeros(3, dtype=torch.float64)
    assert torch.equal(ORTModule(module)(x), module(x))


class Embedding(nn.Module):
    """Flux's and others' embedding of a timestep: in single precision, with angles of up to a thousand."""

    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(64, 1, dtype=torch.float64)

    def forward(self, timestep):
        frequencies = torch.exp(-9.2 * torch.arange(32, dtype=torch.float32) / 32)
        angle = timestep[:, None].float() * 1000 * frequencies
        return self.proj(torch.cat([angle.cos(), angle.sin()], -1).double()).pow(2).mean()


def test_a_sinusoidal_embedding_of_large_angles_is_eagers_in_double_precision():
    torch.manual_seed(0)
    module = Embedding()
    wrapped = ORTModule(module)
    for batch in (2, 5):
        timestep = torch.rand(batch, dtype=torch.float64)
        expected = torch.autograd.grad(module(timestep), list(module.parameters()))
        gradients = torch.autograd.grad(wrapped(timestep), list(module.parameters()))
        for gradient, theirs in zip(gradients, expected, strict=True):
            torch.testing.assert_close(gradient, theirs, rtol=1e-12, atol=0)
