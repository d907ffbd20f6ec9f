"""Normalisation by groups and by instances: one operator each, with eager's numbers and gradients."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from ontrain.providers.torch.buffers import Buf, order_of
from ontrain.providers.torch.emitter import Emitter
from ontrain.training.ortmodule import ORTModule

INSTANCES = {3: nn.InstanceNorm1d, 4: nn.InstanceNorm2d, 5: nn.InstanceNorm3d}


def _norm(kind: str, rank: int, affine: bool) -> nn.Module:
    if kind == "instance":
        return INSTANCES[rank](6, affine=affine, eps=1e-3)
    return nn.GroupNorm({"one": 1, "two": 2, "each": 6}[kind], 6, affine=affine, eps=1e-3)


def _drawn(module: nn.Module) -> nn.Module:
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    return module


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("rank", [2, 3, 4, 5])
@pytest.mark.parametrize("kind", ["one", "two", "each", "instance"])
@pytest.mark.sampled(3)
def test_training_equals_eagers(kind, rank, affine):
    if kind == "instance" and rank == 2:
        pytest.skip("there is no such layer")
    eager = _drawn(_norm(kind, rank, affine)).double()
    ours = ORTModule(copy.deepcopy(eager))
    for batch in (3, 2, 3):
        x = torch.randn(batch, 6, *(4, 3, 2)[: rank - 2], dtype=torch.float64) + 3
        weight = torch.randn_like(x)
        results = []
        for module in (ours, eager):
            leaf = x.clone().requires_grad_()
            y = module(leaf)
            (y * weight).sum().backward()
            results.append((y, leaf.grad, *(parameter.grad for parameter in module.parameters())))
        torch.testing.assert_close(results[0], results[1], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("spatial", [(), (3,)])
def test_an_empty_batch_is_captured_and_adds_nothing(spatial):
    ours = ORTModule(nn.GroupNorm(2, 6))
    for batch in (0, 3, 0):
        ours.zero_grad()
        x = torch.randn(batch, 6, *spatial, requires_grad=True)
        y = ours(x)
        y.square().sum().backward()
        assert y.shape == x.shape == x.grad.shape
        assert all(bool(parameter.grad.any()) == bool(batch) for parameter in ours.parameters())


class _Block(nn.Module):
    """A residual block of a diffusion model."""

    def __init__(self, instance: bool = False) -> None:
        super().__init__()
        self.stem, self.conv = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.norm = nn.InstanceNorm2d(8, affine=True) if instance else nn.GroupNorm(2, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        return x + self.conv(nn.functional.silu(self.norm(x)))


@pytest.mark.parametrize("instance", [False, True], ids=["groups", "instances"])
def test_a_block_keeps_its_channels_last_and_computes_statistics_once(instance, monkeypatch):
    eager = _drawn(_Block(instance))
    ours, copies, calls, copied, compute = ORTModule(copy.deepcopy(eager)), [], [], Emitter.copy, Emitter.compute

    def counting(e: Emitter, source: Buf, place: Buf) -> None:
        if source.meta.dim() == 4 and order_of(source.meta) is not order_of(place.meta):
            copies.append(tuple(source.shape))
        copied(e, source, place)

    def noting(e: Emitter, fn, *args, **kwargs) -> None:
        calls.append(getattr(fn, "__name__", ""))
        compute(e, fn, *args, **kwargs)

    monkeypatch.setattr(Emitter, "copy", counting)
    monkeypatch.setattr(Emitter, "compute", noting)
    x = torch.randn(2, 3, 6, 5)
    for module in (ours, eager):
        module(x).square().mean().backward()
    for mine, theirs in zip(ours.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-5)
    assert copies == [(2, 3, 6, 5), (2, 8, 6, 5), (2, 8, 6, 5)]  # what is fed, the result, and the result's adjoint
    assert "measure" not in calls


def test_parameters_in_single_precision_beside_a_half_input_are_eagers():
    eager = _drawn(_Block())
    ours, x = ORTModule(copy.deepcopy(eager)), torch.randn(2, 3, 6, 5)
    results = []
    for module in (ours, eager):
        with torch.autocast("cpu", torch.bfloat16):
            y = module(x)
        y.float().square().mean().backward()
        results.append([y.float(), *(parameter.grad for parameter in module.parameters())])
    torch.testing.assert_close(results[0], results[1], rtol=5e-2, atol=5e-2)
