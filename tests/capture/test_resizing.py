"""Images resized by a factor take the places and weights that torch takes, for each size."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from ontrain.training.ortmodule import ORTModule

FACTORS = {
    "no size changes": [1.05, 1.11, 1.04],
    "the first size stays": [1.1, 1.7, 2.3],
    "nearly twice": [2.05, 2.01, 2.12],
    "whole numbers": [2.0, 3.0, 1.0],
    "a half and more": [0.5, 1.5, 2.25],
    "smaller": [0.67, 0.53, 0.81],
    "a product just below a whole number": [0.29, 0.58, 1.16],
}
MODES = {
    "nearest": [1, 2, 3],
    "nearest-exact": [1, 2, 3],
    "linear": [1],
    "bilinear": [2],
    "trilinear": [3],
    "bicubic": [2],
    "bilinear, antialias": [2],
    "bicubic, antialias": [2],
}
SIZES = [(7, 8, 6), (9, 5, 4), (100, 5, 3)]


class Resized(nn.Module):
    def __init__(self, factors: list[float], mode: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 2, dtype=torch.float64).reshape(2, *[1] * len(factors)))
        self.options = {"scale_factor": tuple(factors), "mode": mode.partition(",")[0]}
        if mode.endswith("antialias"):
            self.options["antialias"] = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.interpolate(x * self.weight, **self.options).square()


@pytest.mark.sampled(8)
@pytest.mark.parametrize("factors", FACTORS.values(), ids=FACTORS)
@pytest.mark.parametrize(
    ("mode", "rank"), [(mode, rank) for mode, ranks in MODES.items() for rank in ranks], ids=lambda value: str(value)
)
def test_places_and_weights_are_torchs(mode: str, rank: int, factors: list[float]) -> None:
    eager = Resized(factors[:rank], mode)
    ours = ORTModule(copy.deepcopy(eager))
    for size in SIZES:
        x = torch.randn(2, 2, *size[:rank], dtype=torch.float64)
        actual = ours(x)
        torch.testing.assert_close(actual, eager(x), rtol=1e-9, atol=1e-9)
        # torch's backward kernels take the factor where the forward ones copy: forward differentiation is the oracle.
        (gradient,) = torch.autograd.grad(actual.sum(), ours.parameters())
        torch.testing.assert_close(gradient, _gradient(eager, x), rtol=1e-9, atol=1e-9)


def _gradient(module: Resized, x: torch.Tensor) -> torch.Tensor:
    """The derivative of the sum of results by each weight, which moves one channel; the results are squares."""
    (weight,) = module.parameters()
    derivatives = []
    for channel in range(len(weight)):
        moved = x * (torch.arange(len(weight)) == channel).reshape(weight.shape)
        image = functional.interpolate(x * weight, **module.options)
        derivatives.append((2 * image * functional.interpolate(moved, **module.options)).sum())
    return torch.stack(derivatives).reshape(weight.shape).detach()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_a_factor_that_is_a_whole_number_needs_no_fixed_size(mode: str) -> None:
    ours = ORTModule(Resized([2.0, 3.0], mode))
    for size in SIZES:
        assert ours(torch.ones(2, 2, *size[:2], dtype=torch.float64)).shape[2:] == (2 * size[0], 3 * size[1])
    assert ours._engine.captures == 1
