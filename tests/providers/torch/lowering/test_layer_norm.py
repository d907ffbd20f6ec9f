"""Layer normalisation: ATen's kernel, piece by piece, or calls on planned places; right in each."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from ontrain.providers.torch.lowering import layer_norm
from ontrain.training.ortmodule import ORTModule


def _results(model, x, weights):
    """Result, and gradients of input and parameters."""
    leaf = x.clone().requires_grad_()
    model.zero_grad(set_to_none=True)
    y = model(leaf)
    (y * weights).sum().backward()
    return [y.detach(), leaf.grad, *(parameter.grad for parameter in model.parameters())]


def _pair(*args, **more):
    plain = nn.LayerNorm(*args, **more)
    for parameter in plain.parameters():
        nn.init.normal_(parameter)
    return plain, ORTModule(copy.deepcopy(plain))


def _programs(wrapped):
    (entry,) = wrapped._engine.entries
    plans = [plan.executable.current for plan in entry.session.plans.values()]
    return [
        instruction.fn
        for plan in plans
        for half in (plan.forward_code, plan.backward_code)
        for instruction in half.program
    ]


def test_small_values_equal_eager_to_the_bit():
    plain, wrapped = _pair(64)
    x, weights = torch.randn(3, 17, 64), torch.randn(3, 17, 64)
    for ours, eager in zip(_results(wrapped, x, weights), _results(plain, x, weights), strict=True):
        assert torch.equal(ours, eager)
    assert torch.native_layer_norm in _programs(wrapped)


class _Columns(nn.Module):
    """Normalises a part of each row."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        return self.norm(x[:, : self.norm.normalized_shape[0]])


@pytest.mark.parametrize("width", [1, 2])
def test_rows_that_lie_apart_have_eagers_gradients(width):
    plain = _Columns(width).double()
    nn.init.normal_(plain.norm.weight)
    wrapped = ORTModule(copy.deepcopy(plain))
    x, weights = (torch.randn(5, columns, dtype=torch.float64) for columns in (3, width))
    for ours, eager in zip(_results(wrapped, x, weights), _results(plain, x, weights), strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-9, atol=1e-9)


@pytest.fixture(params=["kernel", "places"])
def ways(request, monkeypatch):
    """The calls that large values shall be normalised by, forward and backward."""
    if request.param == "kernel":
        monkeypatch.setattr(layer_norm, "_KERNEL_PIECE", layer_norm._LARGE)
        return torch.native_layer_norm, torch.ops.aten.native_layer_norm_backward.default
    monkeypatch.setenv("ONTRAIN_TUNE", "0")
    return layer_norm._normalise, layer_norm._normalise_backward


@pytest.mark.sampled(3)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("shape", [(512,), (3, 512)], ids=["last axis", "two axes"])
def test_large_values_are_as_near_to_the_exact_result_as_eager(ways, shape, bias):
    plain, wrapped = _pair(shape, bias=bias)
    x, weights = torch.randn(501, 3, 512) * 5 + 20, torch.randn(501, 3, 512)
    exact = _results(copy.deepcopy(plain).double(), x.double(), weights.double())
    for ours, eager, want in zip(_results(wrapped, x, weights), _results(plain, x, weights), exact, strict=True):
        assert (ours - want).abs().max() <= 2 * (eager - want).abs().max()
    calls = _programs(wrapped)
    # Three megabytes: as many calls of the kernel as there are pieces, one call else.
    assert [calls.count(function) for function in ways] == ([3, 3] if torch.native_layer_norm in ways else [1, 1])


def test_the_kernel_piece_by_piece_equals_eager_to_the_bit(monkeypatch):
    monkeypatch.setattr(layer_norm, "_KERNEL_PIECE", layer_norm._LARGE)
    plain, wrapped = _pair(512)
    x, weights = torch.randn(1501, 512) * 5 + 20, torch.randn(1501, 512)
    (y, dx, *sums), (eager_y, eager_dx, *eager_sums) = (_results(model, x, weights) for model in (wrapped, plain))
    assert torch.equal(y, eager_y) and torch.equal(dx, eager_dx)
    for ours, eager in zip(sums, eager_sums, strict=True):  # over rows, which are added up in another order
        torch.testing.assert_close(ours, eager, rtol=1e-6, atol=1e-6 * float(eager.abs().max()))


def test_large_values_in_double_precision_equal_eager(ways, monkeypatch):
    monkeypatch.setattr(layer_norm, "_PIECE", 10 << 10)
    monkeypatch.setattr(layer_norm, "_LARGE", 20 << 10)
    plain, wrapped = (model.double() for model in _pair(32))
    x, weights = torch.randn(7, 101, 32, dtype=torch.float64), torch.randn(7, 101, 32, dtype=torch.float64)
    for ours, eager in zip(_results(wrapped, x, weights), _results(plain, x, weights), strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-12, atol=1e-12 * float(eager.abs().max()))
    assert set(ways) <= set(_programs(wrapped))


@pytest.mark.usefixtures("ways")
def test_a_row_of_one_number_repeated_gives_the_bias():
    plain, wrapped = _pair(256)
    x = torch.linspace(-10, 10, 1100)[:, None].expand(1100, 256).contiguous()
    y, dx, *_ = _results(wrapped, x, torch.ones(1100, 256))
    assert torch.isfinite(dx).all()
    # A mean that is off by a unit in its last place, 2⁻²⁰, times 1/√ε and the largest of the weights.
    off = 2.0**-20 * 1e-5**-0.5 * float(plain.weight.detach().abs().max())
    torch.testing.assert_close(y, plain.bias.expand(1100, 256), rtol=0, atol=2 * off)


def test_a_large_normalisation_asks_the_allocator_for_nothing(monkeypatch):
    from tests.providers.torch.test_steady_state import _asked

    monkeypatch.setenv("ONTRAIN_TUNE", "0")
    plain, wrapped = _pair(256)
    x = torch.randn(1100, 256)
    wrapped(x)
    asked = _asked(lambda: wrapped(x))
    assert [nbytes for nbytes in asked if nbytes > 64] in ([x.nbytes], [x.nbytes, x.nbytes]), (
        "the output that is handed out"
    )
