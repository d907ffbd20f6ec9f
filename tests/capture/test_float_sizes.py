"""Python floats that forward computes of sizes: values and lengths are eager's at each size, in double precision."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

from ontrain.training.ortmodule import ORTModule

FUNCTIONS = {
    "a third": lambda x: x * (x.shape[1] / 3),
    "a root": lambda x: x * x.shape[1] ** -0.5,
    "a remainder": lambda x: x * (x.shape[1] % 1.3),
    "a share": lambda x: x[:, : math.ceil(x.shape[1] * 1.1) - 2],
    "a share rounded": lambda x: x[:, : round(x.shape[1] * 0.7)],
    "a length at another rate": lambda x: x[:, : int(44_100 * x.shape[1] / 16_000) - 2 * x.shape[1]],
    "a whole number": lambda x: x * (2.0 if isinstance(x.shape[1], int) and type(x.shape[1]) == int else 3.0),  # noqa: E721
    "one of two kinds": lambda x: x * (2.0 if isinstance(len(x[0]), (float, int)) else 3.0),
    "a logarithm of numpy's": lambda x: x * np.log(x.shape[1] / 3),
    "a quotient that a tensor is made of": lambda x: (
        x[:, : torch.floor(torch.as_tensor(x.shape[1] * 2 / 3)).long()].sum() * torch.ceil(torch.tensor(len(x) / 4))
    ),
}


class Scaled(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.weight, self.function = nn.Parameter(torch.randn(1, dtype=torch.float64)), function

    def forward(self, x):
        return self.function(self.weight * x)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.sampled(2)
def test_floats_of_sizes_are_pythons(name):
    ours = Scaled(FUNCTIONS[name])
    eager = copy.deepcopy(ours)
    wrapped = ORTModule(ours)
    for length in (15, 20, 30, 1_000_017):
        x = torch.randn(2, length, dtype=torch.float64)
        ours.weight.grad = eager.weight.grad = None
        results = [wrapped(x), eager(x)]
        torch.testing.assert_close(results[0], results[1], rtol=1e-14, atol=0.0)
        for result in results:
            result.pow(2).sum().backward()
        torch.testing.assert_close(ours.weight.grad, eager.weight.grad, rtol=1e-12, atol=0.0)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("function", [np.log, np.sqrt, np.expm1, np.rint], ids=lambda function: function.__name__)
def test_numpys_functions_take_numbers_read_off_a_tensor(function):
    ours = Scaled(lambda y: y * function(y.detach().abs().max().item() * 4))
    eager = copy.deepcopy(ours)
    wrapped = ORTModule(ours)
    for length in (3, 5):
        x = torch.randn(2, length, dtype=torch.float64)
        results = [wrapped(x), eager(x)]
        torch.testing.assert_close(results[0], results[1], rtol=1e-14, atol=0.0)
        for result in results:
            result.sum().backward()
        torch.testing.assert_close(ours.weight.grad, eager.weight.grad, rtol=1e-12, atol=0.0)
