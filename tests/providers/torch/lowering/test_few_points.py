"""Products of pixels give what torch's convolutions by filters of one pixel give, gradients included."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from ontrain.providers.torch.lowering import few_points
from ontrain.training.ortmodule import ORTModule


class Points(nn.Module):
    """Filters of one pixel between others, one with a bias, one whose result leaves the graph, one that is strided."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 32, 3, padding=1)
        self.wide, self.narrow = nn.Conv2d(32, 96, 1, bias=False), nn.Conv2d(96, 24, 1)
        self.strided, self.few = nn.Conv2d(24, 16, 1, stride=2), nn.Conv2d(16, 4, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.narrow(self.wide(self.first(x)).relu())
        return self.few(self.strided(y)), y


@pytest.mark.sampled(2)
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("filters", [torch.contiguous_format, torch.channels_last], ids=str)
def test_a_network_over_few_pixels_trains_by_products(monkeypatch, order, filters):
    calls = []
    for name in ("convolve", "differentiate"):
        own = getattr(few_points, name)
        monkeypatch.setattr(few_points, name, lambda *args, own=own, name=name: (calls.append(name), own(*args))[1])
    torch.manual_seed(0)
    eager = Points().to(memory_format=filters)
    ours = copy.deepcopy(eager)
    wrapped = ORTModule(ours)
    for shape, products in (((6, 3, 18, 20), 2), ((12, 3, 16, 16), 0), ((3, 3, 26, 31), 2)):
        calls.clear()
        x, x_eager = (torch.randn(shape).to(memory_format=order).requires_grad_() for _ in range(2))
        x_eager.data.copy_(x.data)
        for module, images in ((wrapped, x), (eager, x_eager)):
            scores, features = module(images)
            (scores.square().sum() + features.sin().sum()).backward()
        assert calls.count("convolve") == calls.count("differentiate") == products
        torch.testing.assert_close(x.grad, x_eager.grad, rtol=1e-4, atol=1e-4)
    for (name, p), q in zip(ours.named_parameters(), eager.named_parameters(), strict=True):
        torch.testing.assert_close(p.grad, q[1].grad, rtol=1e-4, atol=1e-4 * float(q[1].grad.abs().max()), msg=name)


def test_results_are_laid_out_as_eagers():
    module = nn.Conv2d(16, 32, 1)
    wrapped = ORTModule(copy.deepcopy(module))
    y = wrapped(torch.randn(4, 16, 9, 9))
    assert y.is_contiguous() and y.view(4, -1).shape == (4, 32 * 81)


def test_a_frozen_filter_gets_no_gradient():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(16, 32, 1), nn.ReLU(), nn.Conv2d(32, 16, 1))
    module[0].weight.requires_grad_(False)
    wrapped = ORTModule(copy.deepcopy(module))
    x = torch.randn(4, 16, 9, 9)
    wrapped(x).square().sum().backward()
    module(x).square().sum().backward()
    for p, q in zip(wrapped.parameters(), module.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None)
        if p.grad is not None:
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-4)
