"""Zeros around images become pads of the convolution that reads them, where a convolution can be told of them."""

from __future__ import annotations

import copy

import numpy as np
import onnx_ir as ir
import pytest
import torch
from torch import nn

from ontrain.passes import PadToConv
from ontrain.training.ortmodule import ORTModule
from tests.passes.graphs import applied, graph, operators


def _padded(op, x, w, amounts, *more, mode="constant", **attributes):
    return op.Conv(op.Pad(x, np.array(amounts), *more, mode=mode), w, **attributes)


@pytest.mark.parametrize(
    ("amounts", "more", "attributes"),
    [
        ([0, 0, 1, 2, 0, 0, 1, 2], (), {}),
        ([0, 0, 1, 2, 0, 0, 1, 2], (np.array(0, np.float32),), {"pads": [1, 0, 1, 0], "strides": [2, 1]}),
        ([0, 0, 0, 1, 0, 0, 1, 1], (), {"pads": [1, 0, 0, 0]}),
        ([2, 2], (None, np.array([-1])), {"auto_pad": "VALID", "dilations": [2, 1]}),
    ],
    ids=str,
)
def test_zeros_on_both_sides_become_pads(amounts, more, attributes):
    model = graph(lambda op, x, w: _padded(op, x, w, amounts, *more, **attributes), x=[2, 6, 7, 9], w=[4, 6, 3, 3])
    assert operators(applied(PadToConv(), model, count=1)) == ["Conv"]


def test_groups_and_bias_stay():
    model = graph(
        lambda op, x, w, b: op.Conv(op.Pad(x, np.array([0, 0, 1, 0, 0, 1])), w, b, group=3),
        x=[2, 6, 7], w=[9, 2, 3], b=[9],
    )  # fmt: skip
    assert operators(applied(PadToConv(), model, count=1)) == ["Conv"]


@pytest.mark.parametrize(
    ("amounts", "more", "attributes"),
    [
        ([0, 0, 0, 0, 0, 0, 1, 1], (), {}),
        ([0, 0, 1, 1, 0, 0, 1, 1], (np.array(0.5, np.float32),), {}),
        ([0, 0, 1, 1, 0, 0, 1, 1], (), {"mode": "reflect"}),
        ([0, 0, 1, 1, 0, 0, 1, 1], (), {"auto_pad": "SAME_UPPER"}),
        ([1, 0, 1, 1, 1, 0, 1, 1], (), {}),
    ],
    ids=str,
)
def test_other_pads_stay(amounts, more, attributes):
    model = graph(lambda op, x, w: _padded(op, x, w, amounts, *more, **attributes), x=[2, 6, 7, 9], w=[4, 6, 3, 3])
    assert operators(applied(PadToConv(), model, count=0)) == ["Pad", "Conv"]


def test_a_pad_that_crops_stays():
    model = graph(lambda op, x, w: _padded(op, x, w, [0, 0, -1, 1, 0, 0, -1, 1]), x=[2, 6, 7, 9], w=[4, 6, 3, 3])
    assert PadToConv().apply(model)[1] == 0


def test_a_pad_that_others_read_stays():
    def build(op, x, w):
        padded = op.Pad(x, np.array([0, 0, 1, 1, 0, 0, 1, 1]))
        return op.Add(op.Conv(padded, w), op.ReduceSum(padded))

    assert "Pad" in operators(applied(PadToConv(), graph(build, x=[2, 6, 7, 9], w=[4, 6, 3, 3]), count=0))


class Padded(nn.Module):
    """Convolutions as MobileNetV2 and EfficientNet have them: the pad is a call of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, stride=2, groups=8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.relu6(self.first(nn.functional.pad(x, (1, 1, 1, 1))))
        return self.second(nn.functional.pad(y, (0, 1, 0, 1))).mean((2, 3))


def test_a_network_that_pads_by_hand_trains_as_eager():
    torch.manual_seed(0)
    eager = Padded().double()
    ours = copy.deepcopy(eager)
    wrapped = ORTModule(ours)
    for size in (12, 17):
        x = torch.randn(3, 3, size, size, dtype=torch.float64)
        wrapped(x).square().sum().backward()
        eager(x).square().sum().backward()
    for p, q in zip(ours.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-10, atol=1e-12)
    (entry, *_) = wrapped._engine.entries
    plan = next(iter(entry.session.plans.values()))
    pads = [node for node in plan.model.graph if node.op_type == "Pad"]
    assert len(pads) == 1, "the pad of both sides is the convolution's"
    assert all(isinstance(node, ir.Node) for node in pads)
