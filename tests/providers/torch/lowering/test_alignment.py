"""Losses over alignments: ATen's kernels give what the bodies give, and a device is waited for."""

from __future__ import annotations

import copy
import functools

import onnx_ir as ir
import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from ontrain.operators import record_of
from ontrain.training.ortmodule import ORTModule
from tests.providers.bodies import compare, lowered_in


@lowered_in("alignment")
def test_kernels_equal_the_bodies(sample, rng):
    compare(sample, rng, "TorchExecutionProvider")


def test_a_plan_with_lengths_is_not_recorded():
    """The kernels read lengths on the host."""
    for name in ("CTC", "CTCGrad"):
        assert record_of(ir.Node("ontrain", name, [])).asks_device


class Speech(nn.Module):
    """A score for each class and time, and the losses of its alignments with two blanks and with other labels."""

    def __init__(self, zero_infinity: bool) -> None:
        super().__init__()
        self.scores = nn.Linear(8, 6)
        self.zero_infinity = zero_infinity

    def forward(self, x: torch.Tensor, labels: torch.Tensor, times: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        scores = self.scores(x).log_softmax(-1)
        loss = functools.partial(nn.functional.ctc_loss, scores, reduction="none", zero_infinity=self.zero_infinity)
        others = loss(labels.clamp(max=3), times, counts)
        return loss(labels, times, counts) + 2 * loss(labels, times, counts, blank=5) + 3 * others


@pytest.mark.parametrize("zero_infinity", [False, True])
def test_sums_over_alignments_are_computed_once_a_loss(zero_infinity):
    torch.manual_seed(0)
    eager = Speech(zero_infinity).double()
    ours = ORTModule(copy.deepcopy(eager))
    labels, times = torch.randint(1, 5, (3, 7)), torch.tensor([12, 9, 12])
    # The longest target is shorter than the table; where that is no loss, a target does not fit into its times.
    for counts in ([5, 0, 3], [5, 7 if zero_infinity else 3, 2]):
        batch = torch.randn(12, 3, 8, dtype=torch.float64), labels, times, torch.tensor(counts)
        times[1] = 6
        for module in (eager, ours):
            module.zero_grad()
            with profile(activities=[ProfilerActivity.CPU]) as record:
                module(*batch).sum().backward()
        torch.testing.assert_close(ours.scores.weight.grad, eager.scores.weight.grad)
    calls = {event.key: event.count for event in record.key_averages()}
    assert calls["aten::_ctc_loss"] == calls["aten::_ctc_loss_backward"]
