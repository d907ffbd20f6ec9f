"""Groups of one or two channels, the channels last: gradients are as near to exact ones as the kernel's."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ontrain.providers.torch.lowering import narrow_groups
from ontrain.providers.torch.lowering.narrow_groups import narrow_group_gradients
from ontrain.training.ortmodule import ORTModule

_NORM, _BACKWARD = torch.ops.aten.native_group_norm, torch.ops.aten.native_group_norm_backward


@pytest.mark.parametrize("groups", [6, 3, 2, 1])
@pytest.mark.parametrize("mean", [0.0, 50.0])
def test_gradients_are_as_near_as_the_kernels(groups, mean):
    torch.manual_seed(0)
    x, dy = (torch.randn(3, 6, 40, 33).to(memory_format=torch.channels_last) for _ in range(2))
    x += mean
    scale, bias = torch.rand(6) + 0.5, torch.randn(6)
    size = 3, 6, 40 * 33, groups
    wide = [t.double() for t in (x, scale, bias)]
    _, *exact = _NORM(*wide, *size, 1e-5)
    expected = _BACKWARD(dy.double(), wide[0], *exact, wide[1], *size, [True] * 3)
    statistics = [t.float() for t in exact]
    kernels = _BACKWARD(dy, x, *statistics, scale, *size, [True] * 3)
    ours = narrow_group_gradients(dy, x, *statistics, scale)
    for result, kernel, exactly in zip(ours, kernels, expected, strict=True):
        error, its = ((t.double() - exactly).norm() / exactly.norm() for t in (result, kernel))
        assert error < 2 * its + 1e-6


def test_a_network_of_instances_uses_them(monkeypatch):
    torch.manual_seed(0)
    calls = []

    def counted(*operands):
        calls.append(1)
        return narrow_group_gradients(*operands)

    monkeypatch.setattr("ontrain.providers.torch.lowering.normalization.narrow_group_gradients", counted)
    monkeypatch.setattr(narrow_groups, "_PLACES", 64)
    eager = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.InstanceNorm2d(8, affine=True), nn.ReLU(),
        nn.Conv2d(8, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(),
    ).to(memory_format=torch.channels_last)  # fmt: skip
    x = torch.randn(2, 3, 16, 16).to(memory_format=torch.channels_last)
    eager(x).square().sum().backward()
    expected = [p.grad for p in eager.parameters()]
    eager.zero_grad()
    ORTModule(eager)(x).square().sum().backward()
    for result, gradient in zip((p.grad for p in eager.parameters()), expected, strict=True):
        torch.testing.assert_close(result, gradient, rtol=1e-4, atol=1e-3)
    assert len(calls) == 2
