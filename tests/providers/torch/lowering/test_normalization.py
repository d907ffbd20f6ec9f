"""Normalisations: kernels give what the operators' bodies give; the statistics of a batch are computed once."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.autodiff.samples.sample import sample
from tests.providers.bodies import compare, lowered_in
from tests.training.ortmodule.networks import assert_same_gradients, pair


@pytest.fixture
def network():
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def test_the_gradient_takes_the_forwards_statistics(network, monkeypatch):
    def measured_again(*_, **__):
        raise AssertionError("the statistics are computed a second time")

    ours, eager = pair(network)
    x = 3 + torch.randn(16, 6)
    for module in (ours, eager):
        module(x).square().mean().backward()
        module.zero_grad()
    monkeypatch.setattr(torch, "var_mean", measured_again)
    for module in (ours, eager):
        module(x).square().mean().backward()
    assert_same_gradients(ours, eager, rtol=1e-5, atol=1e-6)


def test_two_normalisations_of_one_batch_have_their_own(network):
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.near, self.far = nn.BatchNorm1d(6, eps=1e-5), nn.BatchNorm1d(6, eps=0.5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.near(x) * self.far(x).relu()

    ours, eager = pair(Twice())
    x = 0.3 * torch.randn(16, 6)
    for module in (ours, eager):
        module(x).square().mean().backward()
    assert_same_gradients(ours, eager, rtol=1e-5, atol=1e-6)


@lowered_in("normalization")
def test_kernels_equal_the_bodies(sample, rng):
    compare(sample, rng, "TorchExecutionProvider")


def test_the_epsilon_of_a_mean_variance_normalization_is_added_to_the_deviation(rng):
    """Values of the size of 1e-5: their variance is below that epsilon, their deviation far above it."""
    small = sample("MeanVarianceNormalization", lambda rng: 1e-5 * rng.standard_normal((2, 3, 4, 2)), twin=torch.clone)
    compare(small, rng, "TorchExecutionProvider")
