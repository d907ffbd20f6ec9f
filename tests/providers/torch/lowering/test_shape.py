"""Shapes, views and copies: kernels give what the operators' bodies give, gradients included."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from ontrain.training.ortmodule import ORTModule
from tests.providers.bodies import compare, lowered_in


@lowered_in("shape")
def test_kernels_equal_the_bodies(sample, rng):
    compare(sample, rng, "TorchExecutionProvider")


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("pads", [[1, 2, 0, 3], [0, 1, 0, 0], [-2, 3, 4, -1], [5, 5, 5, 5, 1, 0, 0, 2]], ids=str)
def test_borders_of_large_results_are_filled_alone(pads, order):
    """Small results are filled as a whole; these are not, and memory that others used before shows what is left out."""
    model = nn.Sequential(nn.Conv2d(4, 8, 1), Pad(pads), nn.ReLU())
    wrapped = ORTModule(copy.deepcopy(model))
    for _ in range(3):
        x = torch.randn(2, 4, 40, 40).to(memory_format=order)
        torch.testing.assert_close(wrapped(x), model(x))


class Pad(nn.Module):
    """Surrounds images with a number."""

    def __init__(self, pads: list[int]) -> None:
        super().__init__()
        self.pads = pads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.pad(x, self.pads, value=-1.5)
