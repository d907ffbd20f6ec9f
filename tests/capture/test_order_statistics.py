"""Medians and modes of what is partly no number, or often the same; parts of numbers: as eager has them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from ontrain.training.ortmodule import ORTModule


class Applied(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.weight, self.function = nn.Parameter(torch.linspace(-2, 3, 12, dtype=torch.float64).view(3, 4)), function

    def forward(self, x):
        return self.function(self.weight * 1.0, x)


def rounded(w, x):
    return (w + x.detach()).round()


FUNCTIONS = {
    "nanmedian": lambda w, x: torch.nanmedian(w / x),
    "nanmedian of equals": lambda w, x: torch.nanmedian(rounded(w, x) * 0 + w[0, 1]),
    "nanmedian along": lambda w, x: torch.nanmedian(w / x, 1).values,
    "nanmedian kept": lambda w, x: torch.nanmedian(w / x, 0, keepdim=True).values,
    "median": lambda w, x: torch.median(w / x),
    "median of numbers": lambda w, x: torch.median(rounded(w, x.nan_to_num(1.0)) * 0 + w[0, 1]),
    "median along": lambda w, x: torch.median(w / x, 1).values,
    "median kept": lambda w, x: torch.median(w / x, 0, keepdim=True).values,
    "places of medians": lambda w, x: torch.median(w / x, 1).indices * w[:, 0],
    "threshold": lambda w, x: nn.functional.threshold(w * x, 0.5, 7.0),
    "between boundaries": lambda w, x: torch.bucketize(w * x, torch.tensor([-1.0, 0.5, 2.0]).double()) * w,
    "between boundaries, right": lambda w, x: torch.bucketize(x, x[0], right=True) * w,
    "mode": lambda w, x: torch.mode(w.round() + 0 * w, 1).values * w[:, 0],
    "mode of the first axis": lambda w, x: torch.mode(w * 0 + w[:1], 0).values,
    "frexp": lambda w, x: torch.frexp(w * 100).mantissa * torch.frexp(w).exponent,
    "replicate and cut": lambda w, x: nn.functional.pad(w[None], (-3, 4), mode="replicate"),
    "pooling": lambda w, x: nn.functional.avg_pool2d(w[None], 2, 2, 1, ceil_mode=True, divisor_override=3),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients_are_eagers(name):
    ours = Applied(FUNCTIONS[name])
    eager = copy.deepcopy(ours)
    x = torch.tensor([[1.0, 2, 3, 4], [0.5, 1, torch.nan, 2], [torch.nan] * 4]).double()
    results = [ORTModule(ours)(x), eager(x)]
    torch.testing.assert_close(*results, equal_nan=True)
    for result in results:
        result.nan_to_num(0.0).square().sum().backward()
    torch.testing.assert_close(ours.weight.grad, eager.weight.grad, equal_nan=True)
