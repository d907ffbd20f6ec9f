"""Modules in half precision as a whole: a result is rounded as often as eager's, measured against float64."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from ontrain.capture.aten.registry import table
from ontrain.training.ortmodule import ORTModule
from tests.halves import error

HALVES = [torch.bfloat16, torch.float16]


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class States(nn.Module):
    """What a recurrent layer returns of its steps."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)[0]


def attend(x):
    """Attention with great scores: of x [4, 24, 32], of variance 4."""
    q, k, v = (part.unflatten(-1, (2, 16)).transpose(1, 2) for part in (2 * x, 2 * x.flip(0), x.flip(1)))
    return functional.scaled_dot_product_attention(q, k, v)


CASES = {
    "attention": lambda: Function(attend),
    "lstm": lambda: States(nn.LSTM(32, 32)),
    "gru": lambda: States(nn.GRU(32, 32)),
    "glu": nn.GLU,
    "variance": lambda: Function(lambda x: x.var(-1)),
    "deviation": lambda: Function(lambda x: x.std(-1)),
    "product and sum": lambda: Function(lambda x: torch.addcmul(x, x, x.flip(0))),
    "quotient and sum": lambda: Function(lambda x: torch.addcdiv(x, x.flip(1), x.flip(0).abs() + 1, value=0.7)),
    "between": lambda: Function(lambda x: torch.lerp(x, x.flip(0), 0.3)),
    "multiple": lambda: Function(lambda x: torch.sub(x, x.flip(0), alpha=0.7)),
    "matrices": lambda: Function(lambda x: torch.addmm(x[0, :, :24], x[1], x[2].t(), beta=0.5)),
    "softplus": lambda: nn.Softplus(1.3),
    "celu": lambda: nn.CELU(0.3),
    "threshold": lambda: nn.Threshold(0.3, 0.1),
    "error function": lambda: Function(torch.erf),
    "exp2": lambda: Function(torch.exp2),
    "expm1": lambda: Function(torch.expm1),
    "log1p": lambda: Function(lambda x: x.abs().log1p()),
    "sinc": lambda: Function(torch.sinc),
    "logit": lambda: Function(lambda x: torch.logit(x.sigmoid(), 1e-3)),
    "running product": lambda: Function(lambda x: x.cumprod(-1)),
    "cubic norm": lambda: Function(lambda x: torch.linalg.vector_norm(x, 3, dim=-1)),
    "images": lambda: Function(lambda x: functional.interpolate(x[None], scale_factor=1.7, mode="bilinear")),
    "cubic images": lambda: Function(lambda x: functional.interpolate(x[None], scale_factor=1.7, mode="bicubic")),
    "instances": lambda: nn.InstanceNorm1d(24),
    "groups of rows": lambda: Function(lambda x: functional.group_norm(x.flatten(0, 1), 4)),
    "digamma": lambda: Function(lambda x: torch.digamma(x.abs() + 1)),
}


def step(module, x):
    """The result, and the gradient of x under adjoints that follow from the shape alone."""
    leaf = x.detach().clone().requires_grad_()
    y = module(leaf)
    adjoint = torch.randn(y.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    y.backward(adjoint.to(y.dtype))
    return y, leaf.grad


@pytest.mark.sampled(8)
@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("name", CASES)
def test_a_result_is_as_near_to_float64_as_eagers(name, half):
    torch.manual_seed(0)
    module, x = CASES[name]().to(half), torch.randn(4, 24, 32).to(half)
    exact = step(copy.deepcopy(module).double(), x.double())
    results, expected = step(ORTModule(copy.deepcopy(module)), x), step(module, x)
    for ours, eager, wanted in zip(results, expected, exact, strict=True):
        assert ours.dtype == eager.dtype
        # Thousands of numbers: chance moves their mean error by less than a tenth.
        assert error(ours, wanted) <= 1.25 * error(eager, wanted), (error(ours, wanted), error(eager, wanted))


@pytest.mark.parametrize("half", HALVES)
def test_the_next_number_and_draws_by_weights_are_known_in_halves(half):
    x = torch.tensor([1.0, -3.0, 0.0, 100.0], dtype=half)
    up = ORTModule(Function(lambda x: torch.nextafter(x, x.abs() + 1)))(x)
    bits = {torch.bfloat16: torch.int16, torch.float16: torch.int16}[half]
    steps = up.view(bits).int() - x.view(bits).int()
    assert steps.tolist() == [1, -1, 1, 1]  # of sign and magnitude
    drawn = ORTModule(Function(lambda x: torch.multinomial(x, 2).float()))(torch.tensor([[0.0, 1.0, 2.0]], dtype=half))
    assert sorted(drawn[0].tolist()) == [1.0, 2.0]


def test_a_scalar_is_squeezed_along_an_axis_that_it_has_not():
    module = Function(lambda x: x.sum().squeeze(0) * x)
    x = torch.randn(3)
    torch.testing.assert_close(ORTModule(module)(x), module(x))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_steps_of_a_layer_in_halves_as_a_gpu_makes_them_add_up_in_single_precision(kind, half, monkeypatch):
    torch.manual_seed(0)
    module, x = States(kind(32, 32)).to(half), torch.randn(6, 24, 32).to(half)
    exact, expected = step(copy.deepcopy(module).double(), x.double()), step(module, x)
    for name in ("lstm.input", "gru.input", "rnn_tanh.input"):
        monkeypatch.setitem(table, name, table[name].__wrapped__)  # which leaves halves what they are
    results = step(ORTModule(module), x)
    for ours, eager, wanted in zip(results, expected, exact, strict=True):
        assert error(ours, wanted) <= 1.25 * error(eager, wanted), (error(ours, wanted), error(eager, wanted))
