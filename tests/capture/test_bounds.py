"""Values on a bound, at a tie or at a kink have eager's gradient, which differs from one torch to another."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from ontrain.training.ortmodule import ORTModule

pytestmark = pytest.mark.sampled(4)

X = torch.tensor([-1.0, 0.0, 0.5, 1.0, 2.0, 6.0, 7.0])
SIGNS = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0])
FUNCTIONS = {
    "clamp": lambda x, low, high: x.clamp(0, 1),
    "clip": lambda x, low, high: x.clip(0, 1),
    "clamp from below": lambda x, low, high: x.clamp(min=0),
    "clamp from above": lambda x, low, high: x.clamp(max=1.0),
    "clamp_min": lambda x, low, high: torch.clamp_min(x, 0),
    "clamp_max": lambda x, low, high: torch.clamp_max(x, 1.0),
    "clamp by a size": lambda x, low, high: x.clamp(max=x.shape[0] - 1),
    "clamp, bounds crossing": lambda x, low, high: x.clamp(1, 0),
    "clamp by tensors": lambda x, low, high: x.clamp(low, high),
    "clamp by numbers in tensors": lambda x, low, high: x.clamp(low[0], high[0]),
    "clamp from below by a tensor": lambda x, low, high: x.clamp(min=low),
    "clamp from above by a tensor": lambda x, low, high: x.clamp(max=high),
    "clamp_min by a tensor": lambda x, low, high: torch.clamp_min(x, low),
    "clamp_max by a tensor": lambda x, low, high: torch.clamp_max(x, high),
    "clamp by tensors, bounds crossing": lambda x, low, high: x.clamp(high, low),
    "maximum": lambda x, low, high: torch.maximum(x, low),
    "minimum": lambda x, low, high: torch.minimum(x, high),
    "fmax": lambda x, low, high: torch.fmax(x, low),
    "fmin": lambda x, low, high: torch.fmin(x, high),
    "hardtanh": lambda x, low, high: functional.hardtanh(x, 0.0, 1.0),
    "relu6": lambda x, low, high: functional.relu6(x),
    "hardswish": lambda x, low, high: functional.hardswish(x * 3),
    "hardsigmoid": lambda x, low, high: functional.hardsigmoid(x * 3),
    "threshold": lambda x, low, high: functional.threshold(x, 1.0, 0.0),
    "hardshrink": lambda x, low, high: functional.hardshrink(x, 1.0),
    "softshrink": lambda x, low, high: functional.softshrink(x, 1.0),
    "relu": lambda x, low, high: functional.relu(x),
    "leaky_relu": lambda x, low, high: functional.leaky_relu(x),
    "elu": lambda x, low, high: functional.elu(x),
    "celu": lambda x, low, high: functional.celu(x),
    "selu": lambda x, low, high: functional.selu(x),
    "prelu": lambda x, low, high: functional.prelu(x, high[:1] * 0.25),
    "rrelu": lambda x, low, high: functional.rrelu(x, 0.25, 0.25),
    "abs": lambda x, low, high: x.abs(),
    "l1_loss": lambda x, low, high: functional.l1_loss(x, low, reduction="none"),
    "smooth_l1_loss": lambda x, low, high: functional.smooth_l1_loss(x, low, reduction="none"),
    "huber_loss": lambda x, low, high: functional.huber_loss(x, low, reduction="none"),
    "hinge_embedding_loss": lambda x, low, high: functional.hinge_embedding_loss(x, SIGNS, reduction="none"),
    "margin_ranking_loss": lambda x, low, high: functional.margin_ranking_loss(
        x, low, SIGNS, margin=1.0, reduction="none"
    ),
    "margin_ranking_loss at its margin": lambda x, low, high: functional.margin_ranking_loss(
        x, low, torch.ones(7), margin=1.0, reduction="none"
    ),
    "triplet_margin_loss": lambda x, low, high: functional.triplet_margin_loss(
        x[:, None], low[:, None], low[:, None] + 1, margin=1.0, eps=0.0, reduction="none"
    ),
    "cosine_embedding_loss": lambda x, low, high: functional.cosine_embedding_loss(
        x[:, None] + 2, high[:, None], -high, margin=1.0, reduction="none"
    ),
}  # fmt: skip


class Called(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function, self.factor = function, nn.Parameter(torch.ones(1))

    def forward(self, x, low, high):
        return self.function(x * self.factor, low, high) * torch.arange(1.0, 8.0)


def results(module):
    inputs = [x.clone().requires_grad_() for x in (X, torch.zeros(7), torch.ones(7))]
    y = module(*inputs)
    y.sum().backward()
    return y.detach(), [torch.zeros(7) if x.grad is None else x.grad for x in inputs]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_bounds_ties_and_kinks_have_eagers_gradient(name):
    expected, gradients = results(Called(FUNCTIONS[name]))
    y, actual = results(ORTModule(Called(FUNCTIONS[name])))
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(actual, gradients)


@pytest.mark.parametrize("name", ["fmax", "fmin", "maximum", "minimum", "clamp", "clamp by tensors", "hardtanh"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_nan_goes_where_it_goes_in_eager(name, place):
    inputs = [X.clone(), torch.zeros(7), torch.ones(7)]
    inputs[place][::2] = torch.nan
    module = Called(FUNCTIONS[name])
    torch.testing.assert_close(ORTModule(module)(*inputs), module(*inputs), equal_nan=True)


class Bounded(nn.Module):
    def __init__(self, low, high):
        super().__init__()
        self.low, self.high = low, high

    def forward(self, x):
        return torch.ops.aten.hardtanh(x, self.low, self.high)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
def test_hardtanh_gives_nothing_to_what_lies_on_a_bound_in_any_precision(dtype):
    # torch 2.11's tracer refuses a lower bound above the upper one, which torch itself computes with.
    crossed = [] if torch.__version__ < (2, 13) else [(2.0, 1.0)]
    for bounds in ((0.0, 6.0), (-0.75, 0.5), (0.25, 0.25), *crossed):
        x = torch.cat([torch.linspace(-8, 8, 41), torch.tensor(bounds), torch.tensor([torch.nan])]).to(dtype)
        ours, eager = x.clone().requires_grad_(), x.clone().requires_grad_()
        module = Bounded(*bounds)
        module(eager).sum().backward()
        ORTModule(module)(ours).sum().backward()
        torch.testing.assert_close(ours.grad, eager.grad, rtol=0, atol=0, equal_nan=True)
