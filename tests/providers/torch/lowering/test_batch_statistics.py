"""Batch normalisation of images with their channels last: sums are as right as where the channels come first."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from ontrain.providers.torch.lowering import batch_statistics as kernels
from ontrain.providers.torch.lowering.batch_statistics import batch_statistics, gradients_by_parts, parts
from ontrain.training.ortmodule import ORTModule


def images(*shape):
    return (torch.randn(shape).relu() + 0.3).contiguous(memory_format=torch.channels_last)


def gradients(dy, x, scale, mean, inv):
    dx = torch.empty_like(x)
    return dx, *gradients_by_parts(dy, x, scale, mean, inv, 1e-5, dx)


def error(computed, expected):
    return float((computed.double() - expected).norm() / expected.norm())


def test_rows_fall_into_equal_parts():
    assert [parts(rows) for rows in (25088, 10125, 1024, 263, 6)] == [64, 45, 8, 1, 1]


@pytest.mark.parametrize("shape", [(8, 64, 56, 56), (5, 32, 45, 45), (3, 7, 11, 13)])
@pytest.mark.parametrize("near", [0.0, 8.0])  # the mean subtracted from the images, and from the result
def test_statistics_and_gradients_are_those_of_double_precision(shape, near, monkeypatch):
    monkeypatch.setattr(kernels, "_NEAR", near)
    x, dy = images(*shape), images(*shape) - 0.7
    scale = torch.rand(shape[1]) + 0.5
    mean, var, inv = batch_statistics(x, 1e-5)
    exact = x.double().requires_grad_(), scale.double().requires_grad_(), torch.zeros_like(scale).double()
    y = nn.functional.batch_norm(exact[0], None, None, exact[1], exact[2].requires_grad_(), training=True)
    variance, expected = torch.var_mean(x.double(), (0, 2, 3), correction=0)
    assert error(mean, expected) < 3e-6
    assert error(var, variance) < 1e-6
    adjoints = gradients(dy, x, scale, mean, inv)
    for computed, wanted in zip(adjoints, torch.autograd.grad(y, exact, dy.double()), strict=True):
        assert error(computed, wanted) < 1e-5


def test_a_convolution_below_has_gradients_as_right_as_eagers():
    net = nn.Sequential(nn.Conv2d(32, 64, 1, bias=False), nn.BatchNorm2d(64))
    x = torch.randn(4, 32, 47, 47).relu()
    weights = torch.rand(4, 64, 47, 47)
    exact, ours = copy.deepcopy(net).double(), ORTModule(copy.deepcopy(net))
    gradients = []
    for module, batch in ((exact, x.double()), (net, x), (ours, x)):
        (module(batch).square() * weights).sum().backward()
        gradients.append([p.grad for p in module.parameters()])
    for expected, eager, computed in zip(*gradients, strict=True):
        assert error(computed, expected) < 4 * error(eager, expected) + 1e-5


def test_a_few_hundred_rows_have_statistics_as_right_as_eagers():
    net = nn.Sequential(nn.Conv2d(64, 64, 1, bias=False), nn.BatchNorm2d(64, momentum=1.0))
    exact, ours = copy.deepcopy(net).double(), ORTModule(copy.deepcopy(net))
    x = torch.randn(4, 64, 16, 16).relu() + 0.3
    for module, batch in ((exact, x.double()), (net, x), (ours, x)):
        module(batch).sum().backward()
    for name in ("running_mean", "running_var"):
        expected, eager, computed = (getattr(module[1], name) for module in (exact, net, ours.module))
        assert error(computed, expected) < 2 * error(eager, expected), name


def test_a_mean_far_above_the_deviation_costs_no_digits_of_the_gradient():
    torch.manual_seed(0)
    x = (torch.randn(4, 3, 16, 16) * 1e-2 + 40).to(memory_format=torch.channels_last)
    dy, scale = torch.randn_like(x), torch.randn(3)
    mean, _, inv = batch_statistics(x, 1e-5)
    ours, _, _ = gradients(dy, x, scale, mean, inv)
    centred, exact = (x - mean.view(1, 3, 1, 1)).double(), dy.double()
    slope = (exact * centred).mean((0, 2, 3), keepdim=True) * inv.double().view(1, 3, 1, 1) ** 2
    factor = (scale * inv).double().view(1, 3, 1, 1)
    wanted = factor * (exact - exact.mean((0, 2, 3), keepdim=True) - centred * slope)
    torch.testing.assert_close(ours.double(), wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("shape", [(3, 48, 61, 47), (2, 5, 200, 131)])
def test_images_that_are_gone_over_in_strips_have_the_same_gradient_to_the_bit(shape, monkeypatch):
    x, dy = images(*shape), images(*shape) - 0.7
    scale = torch.rand(shape[1]) + 0.5
    mean, _, inv = batch_statistics(x, 1e-5)
    monkeypatch.setattr(kernels, "_STRIP", 1 << 17)
    in_strips = gradients(dy, x, scale, mean, inv)
    monkeypatch.setattr(kernels, "_STRIP", x.numel())
    for a, b in zip(in_strips, gradients(dy, x, scale, mean, inv), strict=True):
        assert torch.equal(a, b)
