"""Matrix products: kernels give what the operators' bodies give, gradients included."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from ontrain.training.ortmodule import ORTModule
from tests.providers.bodies import compare, lowered_in


@lowered_in("matmul")
def test_kernels_equal_the_bodies(sample, rng):
    compare(sample, rng, "TorchExecutionProvider")


class Pairs(nn.Module):
    """Products of all pairs of features, as recommenders have them: the chosen pairs' gradient comes with gaps."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.places = nn.Linear(24, 24), torch.tril_indices(9, 9, -1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.inner(x)
        first, second = self.places
        return (z @ z.transpose(1, 2))[:, first, second]


def test_factors_with_gaps_are_copied_once_a_batch():
    torch.manual_seed(0)
    eager = Pairs()
    ours, x = ORTModule(copy.deepcopy(eager)), torch.randn(40, 9, 24)
    for _ in range(2):
        with profile(activities=[ProfilerActivity.CPU]) as record:
            ours(x).square().sum().backward()
    eager(x).square().sum().backward()
    torch.testing.assert_close(ours.inner.weight.grad, 2 * eager.inner.weight.grad, rtol=1e-4, atol=1e-4)
    assert sum(event.count for event in record.key_averages() if event.key == "aten::clone") < len(x)
