"""create_graph=True through an ORTModule: gradients of its gradients are eager's, or refused by name."""

import copy

import pytest
import torch
from torch import nn

from ontrain.errors import GradientError, InputError
from ontrain.training.ortmodule import ORTModule


class Critic(nn.Module):
    def __init__(self, middle=None):
        super().__init__()
        self.a, self.middle, self.b = nn.Linear(3, 8), middle or nn.Tanh(), nn.Linear(8, 2)

    def forward(self, x):
        y = self.b(self.middle(self.a(x)))
        return {"score": y, "size": y.square().mean()}


def pair(middle=None):
    eager = Critic(middle).double()
    return ORTModule(copy.deepcopy(eager)), eager


def numbers(rows=5):
    return torch.randn(rows, 3, dtype=torch.float64)


def grad(y, x, **options):
    return torch.autograd.grad(y, x, create_graph=True, **options)


def penalty(module, x):
    (slope,) = grad(module(x)["score"].sum(), x)
    return (slope.norm(dim=1) - 1).square().sum()


def of_both_results(module, x):
    results = module(x)
    (slope,) = grad([results["score"], results["size"]], x, grad_outputs=[torch.cos(results["score"]), x.sum()])
    return slope.square().sum()


def by_parameters(module, x):
    slopes = grad(module(x)["size"], list(module.parameters()))
    return sum(slope.square().sum() for slope in slopes)


def third(module, x):
    (slope,) = grad(module(x)["score"].sum(), x)
    (curve,) = grad(slope.square().sum(), x)
    return curve.square().sum()


def beside_the_loss(module, x):
    loss = module(x)["size"]
    (slope,) = grad(loss, x)
    return loss + slope.square().sum()


def of_two_calls(module, x):
    return penalty(module, x) * module(2 * x)["size"]


def behind_other_layers(module, x):
    (slope,) = grad(module(torch.sin(x))["score"].exp().sum(), x)
    return slope.square().sum()


def as_backward(module, x):
    module(x)["size"].backward(create_graph=True)
    loss = sum(p.grad.square().sum() for p in module.parameters())
    module.zero_grad()
    return loss


LOSSES = [
    penalty,
    of_both_results,
    by_parameters,
    third,
    beside_the_loss,
    of_two_calls,
    behind_other_layers,
    as_backward,
]


def assert_equal(ours, eager, loss, rows=5):
    x, results = numbers(rows), []
    for module in (ours, eager):
        module.zero_grad()
        z = x.clone().requires_grad_()
        value = loss(module, z)
        (by_z,) = torch.autograd.grad(value, z, retain_graph=True)
        value.backward()
        results.append([value, by_z, *(torch.zeros(()) if p.grad is None else p.grad for p in module.parameters())])
    for actual, wanted in zip(*results, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.filterwarnings("ignore:Using backward")
def test_losses_of_gradients_are_eagers(loss):
    ours, eager = pair()
    for rows in (4, 5, 4):
        assert_equal(ours, eager, loss, rows)
    assert ours._engine.captures == 1


def test_frozen_parameters_and_those_whose_memory_is_replaced():
    ours, eager = pair()
    assert_equal(ours, eager, penalty)
    for module in (ours, eager):
        module.a.weight.requires_grad_(False)
        module.b.weight.data = torch.full_like(module.b.weight, 0.3)
    assert_equal(ours, eager, penalty)


def test_a_batch_norm_counts_one_forward():
    ours, eager = pair(nn.Sequential(nn.BatchNorm1d(8), nn.Tanh()))
    assert_equal(ours, eager, penalty)
    for ours_buffer, buffer in zip(ours.buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(ours_buffer, buffer, rtol=1e-10, atol=1e-10)


def test_what_forward_draws_is_refused_and_not_drawn_again():
    ours, _ = pair(nn.Dropout(0.5))
    x = numbers().requires_grad_()
    with pytest.raises(GradientError, match="gradient of the gradient") as caught:
        penalty(ours, x)
    assert "random" in str(caught.value)
    ours.eval()
    assert penalty(ours, x).requires_grad


class Moving(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.ones(8))

    def forward(self, x):
        y = torch.tanh(x * self.mean)
        self.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return y


def test_a_buffer_that_the_call_reads_and_updates_is_refused():
    ours, _ = pair(Moving())
    with pytest.raises(GradientError, match="gradient of the gradient") as caught:
        penalty(ours, numbers().requires_grad_())
    assert "mean" in str(caught.value)


@pytest.mark.parametrize("name", ["a.bias", "b.bias"])
def test_a_parameter_that_was_changed_since_is_refused(name):
    ours, _ = pair()
    x = numbers().requires_grad_()
    score = ours(x)["score"].sum()
    with torch.no_grad():
        ours.get_parameter(name).mul_(2)
    with pytest.raises((InputError, RuntimeError), match="changed in place|modified by an inplace"):
        grad(score, x)
