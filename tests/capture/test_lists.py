"""Operators over lists of tensors are trained as one operator for each place of the lists."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.training.ortmodule.networks import assert_same_gradients, pair


class OverLists(nn.Module):
    """A function of lists of tensors, two of which go through layers of a model."""

    def __init__(self, function):
        super().__init__()
        self.function, self.first, self.second = function, nn.Linear(3, 2), nn.Linear(3, 4)

    def forward(self, x):
        rows = [self.first(x), self.second(x)]
        return torch.cat([value.flatten() for value in self.function(rows, [row.cos() + 2 for row in rows])])


def written(function, tensors, *arguments):
    copies = [tensor * 1 for tensor in tensors]
    function(copies, *arguments)
    return copies


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: torch._foreach_mul(a, -1),
        lambda a, b: torch._foreach_mul(a, [2.0, 3.0]),
        lambda a, b: torch._foreach_mul(a, b),
        lambda a, b: torch._foreach_add(a, b, alpha=0.3),
        lambda a, b: torch._foreach_add(a, b[0].detach().sum(), alpha=0.3),
        lambda a, b: torch._foreach_sub(a, b),
        lambda a, b: torch._foreach_div(a, b),
        lambda a, b: torch._foreach_addcmul(a, b, b, 0.7),
        lambda a, b: torch._foreach_addcdiv(a, a, b, [0.7, 0.2]),
        lambda a, b: torch._foreach_lerp(a, b, 0.2),
        lambda a, b: torch._foreach_lerp(a, b, b),
        lambda a, b: torch._foreach_pow(b, 1.5),
        lambda a, b: torch._foreach_maximum(a, b),
        lambda a, b: torch._foreach_clamp_min(a, 0.1),
        lambda a, b: torch._foreach_norm(a),
        lambda a, b: torch._foreach_norm(a, 1),
        lambda a, b: torch._foreach_neg(torch._foreach_exp(a)),
        lambda a, b: torch._foreach_sqrt(b),
        lambda a, b: written(torch._foreach_mul_, a, b),
        lambda a, b: written(torch._foreach_addcmul_, a, b, b, 0.3),
        lambda a, b: written(torch._foreach_lerp_, a, b, 0.2),
    ],
)
@pytest.mark.sampled(2)
def test_it_trains_as_in_eager_pytorch(function):
    ours, eager = pair(OverLists(function).double())
    for rows in (2, 5):
        x = torch.randn(rows, 3, dtype=torch.float64)
        expected, result = eager(x), ours(x)
        torch.testing.assert_close(result, expected)
        expected.square().sum().backward()
        result.square().sum().backward()
        assert_same_gradients(ours, eager)
