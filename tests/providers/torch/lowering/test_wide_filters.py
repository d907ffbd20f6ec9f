"""Gradients of filters by columns are torch's, at any geometry; networks with such filters train by them."""

from __future__ import annotations

import copy
import functools
import itertools

import pytest
import torch
from torch import nn

from ontrain.providers.torch.lowering import wide_filters
from ontrain.training.ortmodule import ORTModule
from tests.providers.adjoints import compare

SIZES = [(5, 5), (7, 7), (4, 6), (2, 9), (6, 4)]
GEOMETRIES = [([1, 1], [0, 0]), ([1, 1], [3, 3]), ([2, 2], [2, 2]), ([1, 3], [0, 4]), ([3, 2], [5, 1])]


@pytest.mark.parametrize(("size", "geometry"), list(itertools.product(SIZES, GEOMETRIES)), ids=str)
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("image", [(11, 10), (4, 4), (9, 1)], ids=str)
def test_gradients_are_torchs(size, geometry, order, image):
    torch.manual_seed(0)
    strides, pads = geometry
    if any(n + 2 * pad < k for n, pad, k in zip(image, pads, size, strict=True)):
        pads = list(size)
    x = torch.randn(2, 18, *image).to(memory_format=order).requires_grad_()
    w, bias = torch.randn(18, 1, *size, requires_grad=True), torch.randn(18, requires_grad=True)
    exact = [t.detach().double().requires_grad_() for t in (x, w, bias)]
    y = nn.functional.conv2d(*exact, strides, pads, 1, 18)
    dy = torch.randn(y.shape)
    adjoints = torch.autograd.grad(y, exact, dy.double())
    x, w = x.detach(), w.detach()
    compare(lambda mask: wide_filters.differentiate(dy, x, w, mask, strides, pads), adjoints, rtol=1e-5, atol=1e-4)


def test_a_filter_may_reach_beyond_the_images_on_both_sides():
    x, w = torch.randn(3, 16, 8, 4), torch.randn(16, 1, 8, 4)
    for pad in range(7):
        y = nn.functional.conv2d(x.double(), w.double(), None, 1, (0, pad), 1, 16)
        dy = torch.randn(y.shape)
        (exact,) = torch.autograd.grad(
            nn.functional.conv2d(x.double(), v := w.double().requires_grad_(), None, 1, (0, pad), 1, 16), v, dy.double()
        )
        _, dw, _ = wide_filters.differentiate(dy, x, w, [False, True, False], [1, 1], [0, pad])
        torch.testing.assert_close(dw.double(), exact, rtol=1e-5, atol=1e-4)


class Block(nn.Module):
    """The middle of a ConvNeXt, and of a MobileNet with uneven pads."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Conv2d(48, 48, 7, padding=3, groups=48)
        self.strided = nn.Conv2d(48, 48, 5, stride=2, groups=48, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.strided(nn.functional.pad(self.wide(x).relu(), (1, 2, 1, 2))).mean((2, 3))


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last], ids=str)
def test_a_network_with_wide_filters_trains_by_columns_or_pairs(monkeypatch, order):
    calls = []
    for name in ("_by_columns", "_by_pairs"):
        own = getattr(wide_filters, name)
        monkeypatch.setattr(wide_filters, name, lambda *args, own=own, name=name: (calls.append(name), own(*args))[1])
    torch.manual_seed(0)
    eager = Block()
    ours = copy.deepcopy(eager)
    wrapped = ORTModule(ours)
    for images, size, ways in ((16, 28, ["_by_columns"] * 2), (1, 28, []), (80, 4, ["_by_pairs"])):
        calls.clear()
        x = torch.randn(images, 48, size, size).to(memory_format=order)
        wrapped(x).square().sum().backward()
        eager(x).square().sum().backward()
        assert calls == ways
    for (name, p), q in zip(ours.named_parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-3 * float(q.grad.abs().max()), msg=name)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("pad", [0, 2, 9])
@pytest.mark.parametrize("across", [False, True], ids=["by channel", "by place"])
@pytest.mark.parametrize(("length", "width"), [(20, 6), (20, 9), (64, 8), (90, 31), (32, 32)])
def test_lines_are_torchs(stride, pad, across, length, width):
    torch.manual_seed(0)
    x = torch.randn(3, length, 41).transpose(1, 2) if across else torch.randn(3, 41, length)
    w, bias = torch.randn(x.shape[1], 1, width), torch.randn(x.shape[1])
    exact = [t.double().requires_grad_() for t in (x, w, bias)]
    y = nn.functional.conv1d(*exact, stride, pad, 1, x.shape[1])
    ours = wide_filters.convolve_line(x, w, bias, [stride], [pad])
    torch.testing.assert_close(ours.double(), y, rtol=1e-5, atol=1e-4)
    dy = torch.randn(y.shape)
    adjoints = torch.autograd.grad(y, exact, dy.double())
    by_line = functools.partial(wide_filters.differentiate_line, dy, x, w, strides=[stride], pads=[pad])
    compare(by_line, adjoints, rtol=1e-5, atol=1e-4)


class Causal(nn.Module):
    """The convolution of a Mamba, uneven pads and all."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(64, 64), nn.Conv1d(64, 64, 5, groups=64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.pad(self.inner(x).transpose(1, 2), (4, 0))
        return nn.functional.silu(self.outer(y)).transpose(1, 2)


def test_a_network_over_lines_trains_with_channels_side_by_side(monkeypatch):
    calls = []
    for name in ("convolve_line", "differentiate_line"):
        own = getattr(wide_filters, name)
        monkeypatch.setattr(wide_filters, name, lambda *args, own=own, name=name: (calls.append(name), own(*args))[1])
    torch.manual_seed(0)
    eager = Causal()
    ours = copy.deepcopy(eager)
    wrapped = ORTModule(ours)
    for length, products in ((900, 2), (20, 0)):
        calls.clear()
        x = torch.randn(2, length, 64)
        wrapped(x).square().sum().backward()
        eager(x).square().sum().backward()
        assert len(calls) == products
    for (name, p), q in zip(ours.named_parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-4 * float(q.grad.abs().max()), msg=name)
