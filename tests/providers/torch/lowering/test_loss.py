"""Losses: kernels give what the operators' bodies give, gradients included."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from ontrain.training.ortmodule import ORTModule
from tests.providers.bodies import compare, lowered_in


@lowered_in("loss")
def test_kernels_equal_the_bodies(sample, rng):
    compare(sample, rng, "TorchExecutionProvider")


class Pixels(nn.Module):
    """Scores for each class and place that nothing else reads, and their loss."""

    def __init__(self, reduction: str) -> None:
        super().__init__()
        self.scale, self.reduction = nn.Parameter(torch.randn(5, 1)), reduction
        self.register_buffer("weight", torch.rand(5))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        scores = (x.flatten(2) * self.scale).view(x.shape)
        return nn.functional.cross_entropy(scores, labels, self.weight, ignore_index=3, reduction=self.reduction)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("places", [(19,), (3, 1), (13, 70), (3, 4, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.sampled(4)
def test_classes_in_planes_are_not_copied_to_rows(reduction, places, dtype):
    torch.manual_seed(0)
    eager = Pixels(reduction).to(dtype)
    ours = ORTModule(copy.deepcopy(eager))
    x, labels = torch.randn(4, 5, *places, dtype=dtype), torch.randint(0, 5, (4, *places))
    for _ in range(2):
        with profile(activities=[ProfilerActivity.CPU]) as record:
            loss = ours(x, labels)
            loss.square().sum().backward()
    expected = eager(x, labels)
    torch.testing.assert_close(loss, expected)
    expected.square().sum().backward()
    torch.testing.assert_close(ours.scale.grad, 2 * eager.scale.grad)
    calls = {event.key for event in record.key_averages()}
    assert {"aten::nll_loss2d_forward", "aten::nll_loss2d_backward"} <= calls


def test_channels_side_by_side_stay_rows():
    torch.manual_seed(0)
    eager = nn.Sequential(nn.Conv2d(3, 16, 3), nn.Conv2d(16, 7, 1)).to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 12, 12).to(memory_format=torch.channels_last)
    labels = torch.randint(0, 7, (2, 10, 10))
    ours = ORTModule(copy.deepcopy(eager))
    for module in (eager, ours):
        nn.functional.cross_entropy(module(x), labels).backward()
    for p, q in zip(ours.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-6)
