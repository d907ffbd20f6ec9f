"""An input whose size follows from another's is captured once, whichever comes first."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from tests.training.ortmodule.networks import assert_same_gradients, pair

CASES = {
    "twice": (lambda x, y: torch.cat([x, x], 1) + y, lambda n: ((2, n), (2, 2 * n))),
    "the rest": (lambda x, y: torch.cat([x, y], 1) * torch.arange(21.0), lambda n: ((2, n), (2, 21 - n))),
    "one less": (lambda x, y: x[:, 1:] + y, lambda n: ((2, n), (2, n - 1))),
    "its square": (lambda x, y: (x[:, :, None] * x[:, None]).flatten(1) * y, lambda n: ((2, n), (2, n * n))),
    "half": (lambda x, y: x[:, ::2] + y, lambda n: ((2, 2 * n), (2, n))),
    "the sum": (lambda x, y, z: torch.cat([x, y], 1) + z, lambda n: ((2, n), (2, 3), (2, n + 3))),
}


class Ordered(nn.Module):
    """A function of several tensors, which come in any order."""

    def __init__(self, function, order):
        super().__init__()
        self.function, self.order = function, order
        self.scale = nn.Parameter(torch.tensor(1.5, dtype=torch.float64))

    def forward(self, *tensors):
        by_place = dict(zip(self.order, tensors, strict=True))
        return (self.function(*[by_place[place] for place in sorted(by_place)]) * self.scale).sin().sum()


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("error:.*captured anew")
@pytest.mark.parametrize("name", CASES)
def test_in_every_order_one_capture_serves_all_sizes(name):
    function, shapes = CASES[name]
    for order in itertools.permutations(range(len(shapes(4)))):
        ours, eager = pair(Ordered(function, order))
        for size in (5, 8, 5, 11):
            tensors = [torch.randn(shapes(size)[place], dtype=torch.float64) for place in order]
            losses = [module(*tensors) for module in (ours, eager)]
            torch.testing.assert_close(*losses)
            for loss in losses:
                loss.backward()
            assert_same_gradients(ours, eager, rtol=1e-9, atol=1e-11)
        assert ours._engine.captures == 1
