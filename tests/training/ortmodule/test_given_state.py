"""`torch.func.functional_call` of an ORTModule: given tensors are computed with, and get the gradients."""

from __future__ import annotations

import pytest
import torch
from torch import func, nn

from tests.training.ortmodule.networks import assert_same_gradients, pair

DOUBLE = dict(rtol=1e-9, atol=1e-11)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)
        self.b.weight = self.a.weight

    def forward(self, x, scale=1.0):
        return self.b(torch.tanh(self.norm(self.a(x)))) * scale


def batches():
    return [torch.randn(rows, 4, dtype=torch.float64) for rows in (3, 5, 3)]


def twice(module, names=None):
    """Twice the values of a module's parameters, as leaves."""
    return {
        name: (2 * parameter.detach()).requires_grad_()
        for name, parameter in module.named_parameters()
        if names is None or name in names
    }


@pytest.mark.parametrize("names", [None, {"b.bias"}, {"a.weight", "norm.bias"}], ids=["all", "one", "a tied one"])
def test_given_tensors_get_the_gradients(names):
    ours, eager = pair(Tied().double())
    for x in batches():
        results = []
        for module in (ours, eager):
            module.zero_grad()
            state = twice(module, names)
            y = func.functional_call(module, state, (x,), {"scale": 2.0})
            y.square().sum().backward()
            results.append([y, *(tensor.grad for tensor in state.values())])
        torch.testing.assert_close(*results, **DOUBLE)
        if names is not None:
            assert_same_gradients(ours, eager, **DOUBLE)
    torch.testing.assert_close(dict(ours.named_buffers()), dict(eager.named_buffers()), **DOUBLE)
    assert ours._engine._given._engine.captures == 1


def test_calls_with_and_without_given_tensors_take_turns():
    ours, eager = pair(Tied().double())
    for x in batches():
        for module in (ours, eager):
            module.zero_grad()
            func.functional_call(module, twice(module), (x,)).sum().backward()
            module(x).square().sum().backward()
        assert_same_gradients(ours, eager, **DOUBLE)
    ours.eval(), eager.eval()
    torch.testing.assert_close(*[func.functional_call(m, twice(m), (x,)) for m in (ours, eager)], **DOUBLE)
    assert (ours._engine.captures, ours._engine._given._engine.captures) == (1, 2)


def test_an_inner_step_is_differentiated():
    ours, eager = pair(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)).double())
    for x in batches():
        for module in (ours, eager):
            module.zero_grad()
            weights = dict(module.named_parameters())
            inner = func.functional_call(module, weights, (x,)).square().mean()
            slopes = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
            stepped = {name: p - 0.1 * g for (name, p), g in zip(weights.items(), slopes, strict=True)}
            func.functional_call(module, stepped, (x + 1,)).square().mean().backward()
        assert_same_gradients(ours, eager, **DOUBLE)


def test_given_buffers_are_computed_with():
    ours, eager = pair(Tied().double())
    ours.eval(), eager.eval()
    for x in batches():
        state = {"norm.running_mean": torch.randn(4, dtype=torch.float64), **twice(eager)}
        torch.testing.assert_close(*[func.functional_call(module, state, (x,)) for module in (ours, eager)], **DOUBLE)
