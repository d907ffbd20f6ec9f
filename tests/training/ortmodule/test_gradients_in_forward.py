"""Forwards that ask for gradients themselves: penalties, forces, residuals of differential equations, inner steps."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ontrain.errors import CaptureError, GradientError
from ontrain.training.ortmodule import ORTModule

FORWARDS = {}


def forward(function):
    FORWARDS[function.__name__] = function
    return function


class Field(nn.Module):
    def __init__(self, forward):
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(2, 8), nn.LayerNorm(8), nn.Linear(8, 1)
        self.double()
        self._forward = forward

    def field(self, x):
        return self.b(torch.tanh(self.norm(self.a(x))))

    def forward(self, x):
        return self._forward(self, x)


def grad(y, x, **options):
    return torch.autograd.grad(y, x, create_graph=True, **options)


@forward
def gradient_penalty(self, x):
    x = x.detach().requires_grad_()
    y = self.field(x)
    (slope,) = grad(y.sum(), x)
    return y.mean() + (slope.norm(dim=1) - 1).pow(2).mean()


@forward
def residual_of_a_heat_equation(self, x):
    x = x.detach().requires_grad_()
    u = self.b(torch.tanh(self.a(x)))
    (slope,) = grad(u, x, grad_outputs=torch.ones_like(u))
    (curve,) = grad(slope[:, 0].sum(), x)
    return (slope[:, 1] - curve[:, 0]).pow(2).mean()


@forward
def energy_and_force(self, x):
    x = x.detach().requires_grad_()
    energy = self.field(x).sum()
    return energy, -grad(energy, x)[0]


@forward
def gradient_without_a_graph(self, x):
    x = x.detach().requires_grad_()
    y = self.field(x)
    (slope,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
    return (y * slope).sum()


@forward
def inner_step_on_parameters(self, x):
    weights = dict(self.named_parameters())
    steps = grad(self.field(x).pow(2).mean(), list(weights.values()))
    w = {name: weight - 0.1 * step for (name, weight), step in zip(weights.items(), steps, strict=True)}
    h = F.layer_norm(F.linear(x, w["a.weight"], w["a.bias"]), (8,), w["norm.weight"], w["norm.bias"])
    return F.linear(torch.tanh(h), w["b.weight"], w["b.bias"]).pow(2).mean()


@forward
def adjoint_that_is_computed(self, x):
    x = x.detach().requires_grad_()
    h = self.a(x)
    (slope,) = grad(torch.sin(h), x, grad_outputs=torch.cos(h))
    return slope.pow(2).sum()


class Recomputed(torch.autograd.Function):
    """Rounds in forward, and has in backward the gradients of what it rounds, by autograd itself."""

    @staticmethod
    def forward(ctx, x, *weights):
        ctx.save_for_backward(x, *weights)
        return torch.round(torch.tanh(F.linear(x, *weights)) * 8)

    @staticmethod
    def backward(ctx, dy):
        x, *weights = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = torch.tanh(F.linear(x, *weights)) * 8
            return torch.autograd.grad(y, (x, *weights), dy, allow_unused=True, retain_graph=True)


@forward
def in_a_function_of_its_own(self, x):
    return self.b(Recomputed.apply(x * self.norm.weight[:2], self.a.weight, self.a.bias))


class Scan(torch.autograd.Function):
    """Sums from the left, written to views of a copy; and from the right in backward."""

    @staticmethod
    def forward(ctx, a, x):
        factors, sums = a.clone().transpose(0, 1), x.clone().transpose(0, 1)
        pairs, by = sums.view(-1, 2, sums.shape[1]), factors.view(-1, 2, sums.shape[1])
        pairs[:, 1].add_(by[:, 1].mul(pairs[:, 0]))
        by[:, 1].mul_(by[:, 0])
        ctx.save_for_backward(a, sums)
        return sums.transpose(0, 1)[:, :]

    @staticmethod
    def backward(ctx, dy):
        a, sums = ctx.saved_tensors
        adjoint, factors = dy.clone().transpose(0, 1), F.pad(a.transpose(0, 1), (0, 0, 0, 1))[1:]
        pairs = adjoint.view(-1, 2, adjoint.shape[1])
        pairs[:, 0].add_(factors.view(-1, 2, adjoint.shape[1])[:, 0].mul(pairs[:, 1]))
        changed = torch.zeros_like(sums)
        changed[1::2].add_(sums[:-1:2] * adjoint[1::2])
        return changed.transpose(0, 1)[:, :], 2 * adjoint.transpose(0, 1)[:, :]


@forward
def in_a_function_that_writes_to_views(self, x):
    h = self.a(x)[None, :, 0].expand(2, -1)
    h = torch.cat([h, h], 1)
    return Scan.apply(h.tanh(), h)


@forward
def of_several_by_what_some_do_not_depend_on(self, x):
    x = x.detach().requires_grad_()
    first, second = self.a(x).pow(2).sum(), x.exp().sum()
    slopes = grad([first, second], [x, self.a.weight, self.b.weight], allow_unused=True)
    assert slopes[2] is None
    return slopes[0].sum() + slopes[1].pow(2).sum()


ALIKE = {
    "copy": torch.clone,
    "view of all of it": lambda h: h.view_as(h),
    "same shape": lambda h: h.reshape(h.shape),
    "expanded to its own shape": lambda h: h.expand(h.shape),
    "only part": lambda h: h.split(8, 1)[0],
    "only chunk of many": lambda h: torch.chunk(h, 1)[0],
    "all rows": lambda h: h[:],
    "sum over no axis": lambda h: h.squeeze(0),
    "computed twice": torch.tanh,
}


def by_what_has_the_same_value(alike):
    """Autoregressive flows take the slope of a transformation by a copy of what its coefficients are made of."""

    def forward(self, x):
        h = self.a(x)
        c = alike(h)
        if not c.requires_grad:
            c.requires_grad_()
        y = self.norm(alike(h) if alike is torch.tanh else h).sigmoid() * c.pow(3)
        return y.sum() + grad(y, c, grad_outputs=torch.ones_like(y))[0].pow(2).sum()

    return forward


FORWARDS.update((f"by a {name}", by_what_has_the_same_value(alike)) for name, alike in ALIKE.items())


@forward
def by_a_copy_of_an_input(self, x):
    c = x.clone().requires_grad_()
    y = self.a(x).pow(2).sum(1, keepdim=True) * c.pow(3)
    return grad(y, c, grad_outputs=torch.ones_like(y))[0].pow(2).sum()


@forward
def by_a_view_written_to_later(self, x):
    h = self.a(x)
    c = h.view(-1)
    h.mul_(2)
    y = self.norm(h).sigmoid().view(-1) * c.pow(3)
    return grad(y, c, grad_outputs=torch.ones_like(y))[0].pow(2).sum()


def step(module, x):
    module.zero_grad()
    results = module(x.clone())
    results = results if isinstance(results, tuple) else (results,)
    sum(r.pow(2).sum() for r in results).backward()
    return [*results, *(torch.zeros_like(p) if p.grad is None else p.grad for p in module.parameters())]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", FORWARDS)
def test_values_and_gradients_are_eagers(name):
    eager = Field(FORWARDS[name])
    ours = ORTModule(copy.deepcopy(eager))
    for rows in (3, 5, 3):
        x = torch.randn(rows, 2, dtype=torch.float64)
        for actual, wanted in zip(step(ours, x), step(eager, x), strict=True):
            torch.testing.assert_close(actual, wanted, rtol=1e-9, atol=1e-9)
    assert ours._engine.captures == 1


def test_the_third_derivative_of_a_layer_norm_is_that_of_its_formula():
    """Eager's own loses a part of it."""

    def curvature(normalise):
        def forward(self, x):
            x = x.detach().requires_grad_()
            (slope,) = grad(normalise(self, self.a(x)).pow(3).sum(), x)
            return grad(slope[:, 0].sum(), x)[0].sum()

        return forward

    def formula(self, h):
        h = h - h.mean(-1, keepdim=True)
        h = h / (h.pow(2).mean(-1, keepdim=True) + self.norm.eps).sqrt()
        return h * self.norm.weight + self.norm.bias

    written, x = Field(curvature(formula)), torch.randn(3, 2, dtype=torch.float64)
    ours = ORTModule(copy.deepcopy(written))
    ours.module._forward = curvature(lambda self, h: self.norm(h))
    for actual, wanted in zip(step(ours, x), step(written, x), strict=True):
        torch.testing.assert_close(actual, wanted, rtol=1e-8, atol=1e-8)


def test_what_does_not_depend_is_eagers_error():
    def unused(self, x):
        return grad(self.a(x).sum(), self.b.weight)[0].sum()

    with pytest.raises(CaptureError, match="not have been used in the graph"):
        ORTModule(Field(unused))(torch.randn(3, 2, dtype=torch.float64))


def test_gradients_and_sizes_from_values_are_refused_together():
    def chosen(self, x):
        x = x.detach().requires_grad_()
        return grad(self.field(x[x[:, 0] > 0]).sum(), x)[0].sum()

    with pytest.raises(GradientError, match="sizes that follow from values") as refusal:
        ORTModule(Field(chosen))(torch.randn(3, 2, dtype=torch.float64))
    assert 'breaks="allow"' in str(refusal.value)
