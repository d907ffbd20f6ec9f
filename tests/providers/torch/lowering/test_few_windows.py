"""Products of a few windows give what torch's convolutions give, gradients included, at any geometry."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from ontrain.providers.torch.lowering import few_windows
from ontrain.training.ortmodule import ORTModule
from tests.providers.adjoints import compare

GEOMETRIES = [([1, 1], [0, 0], [1, 1]), ([2, 1], [1, 2], [1, 1]), ([1, 3], [2, 0], [2, 1])]


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
@pytest.mark.parametrize("size", [(3, 2), (1, 1), (2, 3)], ids=str)
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last], ids=str)
def test_products_are_torchs_convolution_and_its_gradients(geometry, size, order):
    torch.manual_seed(0)
    strides, pads, dilations = geometry
    x = torch.randn(2, 5, 7, 6).to(memory_format=order).requires_grad_()
    w, bias = torch.randn(4, 5, *size, requires_grad=True), torch.randn(4, requires_grad=True)
    wanted = nn.functional.conv2d(x, w, bias, strides, pads, dilations)
    dy = torch.randn_like(wanted)
    adjoints = torch.autograd.grad(wanted, (x, w, bias), dy)
    with torch.no_grad():
        y = few_windows.convolve(x, w, bias, strides, pads, dilations)
        torch.testing.assert_close(y, wanted, rtol=1e-4, atol=1e-4)
        windows = (strides, pads, dilations)
        compare(lambda mask: few_windows.differentiate(dy, x, w, mask, *windows), adjoints, rtol=1e-4, atol=1e-4)


class Tail(nn.Module):
    """The end of a network for images, as deep layers have it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(256, 1024, 3, 2, 1), nn.Conv2d(1024, 1024, 3, 1, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x).relu()).mean((2, 3))


def test_a_network_whose_last_images_are_small_trains_by_products(monkeypatch):
    calls = []
    for name in ("convolve", "differentiate"):
        own = getattr(few_windows, name)
        monkeypatch.setattr(few_windows, name, lambda *args, own=own, name=name: (calls.append(name), own(*args))[1])
    torch.manual_seed(0)
    eager = Tail()
    ours = copy.deepcopy(eager)
    wrapped = ORTModule(ours)
    for images, by_products in ((2, 3), (40, 0)):
        calls.clear()
        x = torch.randn(images, 256, 4, 4)
        for module in (eager, wrapped):
            module.zero_grad()
            module(x).square().sum().backward()
        assert len(calls) == by_products, calls
        for a, b in zip(eager.parameters(), ours.parameters(), strict=True):
            torch.testing.assert_close(b.grad, a.grad, rtol=1e-3, atol=1e-5)
