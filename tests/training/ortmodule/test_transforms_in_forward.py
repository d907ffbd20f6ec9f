"""Forwards that differentiate functions by torch.func: losses and all gradients are eager's."""

import copy

import pytest
import torch
from torch import func, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from ontrain.errors import CaptureError
from ontrain.training.ortmodule import ORTModule

FORWARDS = {}
SIZED = {"jacobian_of_a_batch", "jacobian_forwards_of_a_batch", "curvature_of_a_batch", "many_adjoints_at_once"}
"""Those with as many adjoints as the batch has numbers: each batch size is a graph."""

NESTED = {"jacobian_forwards_of_each_row", "laplacian_of_each_row", "batches_in_batches",
          "products_whose_batch_comes_last"}  # fmt: skip
"""Those with a matrix product in a `vmap` in another; before 2.13 torch cannot trace it with a size that varies."""

LOOPED = {"attention"}
"""Those with an attention in a `vmap`: from torch 2.15 on each number of rows is a graph."""


def forward(function):
    FORWARDS[function.__name__] = function
    return function


class Field(nn.Module):
    def __init__(self, forward):
        super().__init__()
        self.a, self.norm, self.b, self.c = nn.Linear(3, 8), nn.LayerNorm(8), nn.Linear(8, 1), nn.Linear(8, 2)
        self.double()
        self._forward = forward

    def hidden(self, x):
        return torch.tanh(self.a(x))

    def energy(self, x):
        return self.b(self.hidden(x)).sum()

    def pair(self, x):
        return self.c(torch.sin(self.a(x)))

    def forward(self, x):
        return self._forward(self, x)


@forward
def force(self, x):
    return func.grad(lambda x: self.c(self.norm(self.hidden(x))).square().sum())(x).square().sum()


@forward
def energy_and_force(self, x):
    slope, value = func.grad_and_value(self.energy)(x)
    return value + slope.square().sum()


@forward
def gradient_beside_another_result(self, x):
    def energy(x, scale):
        hidden = self.hidden(x)
        return self.b(hidden * scale).sum(), hidden

    (by_x, by_scale), hidden = func.grad(energy, argnums=(0, 1), has_aux=True)(x, x.mean())
    return (by_x * by_scale).sum() + hidden.square().sum()


@forward
def gradient_of_a_gradient(self, x):
    return func.grad(lambda x: func.grad(self.energy)(x).square().sum())(x).square().sum()


@forward
def gradient_by_what_else_is_read_is_none_of_its(self, x):
    return func.grad(lambda y: (y * x * func.grad(lambda z: (y * z**3).sum())(x)).sum())(x).square().sum()


@forward
def gradient_within_no_grad(self, x):
    with torch.no_grad():
        slope = func.grad(self.energy)(x)
    return (self.pair(x) ** 2).sum() + slope.square().sum()


@forward
def gradient_of_what_is_cut_off(self, x):
    def energy(x):
        with torch.no_grad():
            scale = self.a(x)
        return (self.hidden(x) * scale).sum()

    return func.grad(energy)(x).square().sum()


@forward
def gradient_by_parameters(self, x):
    weights = dict(self.c.named_parameters())
    steps = func.grad(lambda w: func.functional_call(self.c, w, (self.hidden(x),)).square().mean())(weights)
    stepped = {name: weight - 0.1 * steps[name] for name, weight in weights.items()}
    return func.functional_call(self.c, stepped, (self.hidden(x),)).square().mean()


@forward
def gradient_of_each_row_by_parameters(self, x):
    weights = dict(self.a.named_parameters())

    def energy(weights, x):
        return self.b(torch.tanh(func.functional_call(self.a, weights, (x,)))).sum()

    slopes = func.vmap(func.grad(energy), in_dims=(None, 0))(weights, x)
    return sum(slope.flatten(1).norm(dim=1).sum() for slope in slopes.values())


@forward
def product_with_a_jacobian(self, x):
    y, pull = func.vjp(self.pair, x)
    return pull(torch.cos(y))[0].square().sum() + y.sum()


@forward
def products_with_a_jacobian_of_two_results(self, x):
    y, pull = func.vjp(lambda x, z: {"sum": self.pair(x) + z, "hidden": self.hidden(x)}, x, self.c.bias)
    by_x, by_z = pull({"sum": y["sum"], "hidden": torch.ones_like(y["hidden"])})
    return by_x.square().sum() + by_z.square().sum()


@forward
def product_of_a_jacobian(self, x):
    y, t = func.jvp(self.pair, (x,), (x.cos(),))
    return (y * t).square().sum()


@forward
def product_of_a_hessian(self, x):
    return func.jvp(func.grad(self.energy), (x,), (x.sin(),))[1].square().sum()


@forward
def product_of_a_hessian_backwards(self, x):
    _, pull = func.vjp(func.grad(self.energy), x)
    return pull(x.sin())[0].square().sum()


@forward
def pushed_twice(self, x):
    def along(x):
        return func.jvp(self.pair, (x,), (torch.ones_like(x),))[1]

    return func.jvp(along, (x,), (torch.ones_like(x),))[1].square().sum()


@forward
def jacobian_of_each_row(self, x):
    return func.vmap(func.jacrev(self.pair))(x).square().sum()


@forward
def jacobian_forwards_of_each_row(self, x):
    return func.vmap(func.jacfwd(self.pair))(x).square().sum()


@forward
def laplacian_of_each_row(self, x):
    return func.vmap(lambda x: func.hessian(self.energy)(x).diagonal().sum())(x).square().sum()


@forward
def curvature_of_each_row_backwards_twice(self, x):
    return func.vmap(func.jacrev(func.jacrev(self.energy)))(x).square().sum()


@forward
def residual_of_a_differential_equation(self, x):
    def u(t, s):
        return self.energy(torch.stack([t, s, t * s]))

    by_t = func.vmap(func.grad(u, argnums=0))(x[:, 0], x[:, 1])
    twice_by_s = func.vmap(func.grad(func.grad(u, argnums=1), argnums=1))(x[:, 0], x[:, 1])
    return (by_t - 0.1 * twice_by_s).square().mean()


@forward
def columns_of_a_batch(self, x):
    return func.vmap(func.grad(self.energy), in_dims=1, out_dims=1)(x.T.contiguous()).square().sum()


@forward
def batches_in_batches(self, x):
    pairs = func.vmap(func.vmap(func.grad(lambda x, w: (self.hidden(x) @ w).sum()), (0, None)), (None, 0))
    return pairs(x, self.c.weight).square().sum()


@forward
def products_whose_batch_comes_last(self, x):
    hidden = func.vmap(lambda row: self.a.weight.float().double() @ row.float().double())(x)
    return func.vmap(func.vmap(lambda row: self.b.weight @ row))(torch.stack([hidden, hidden.sin()], 1)).square().sum()


@forward
def attention(self, x):
    def energy(x):
        q = self.a(x).reshape(1, 3, 8)
        return self.b(F.scaled_dot_product_attention(q, q, torch.softmax(q, -1))).sum()

    return func.vmap(func.grad(energy))(x[:, None] * x[:, :, None]).square().sum()


@forward
def jacobian_of_a_batch(self, x):
    return func.jacrev(self.pair)(x).square().sum()


@forward
def jacobian_forwards_of_a_batch(self, x):
    return func.jacfwd(self.pair)(x).square().sum()


@forward
def curvature_of_a_batch(self, x):
    return func.hessian(self.energy)(x).square().sum()


@forward
def many_adjoints_at_once(self, x):
    x = x.clone().requires_grad_()
    y = self.pair(x)
    adjoints = torch.eye(y.numel(), dtype=x.dtype).reshape(-1, *y.shape)
    return torch.autograd.grad(y, x, adjoints, create_graph=True, is_grads_batched=True)[0].square().sum()


def step(module, x):
    module.zero_grad()
    x = x.clone().requires_grad_()
    loss = module(x)
    loss.backward()
    return [loss, x.grad, *(torch.zeros_like(p) if p.grad is None else p.grad for p in module.parameters())]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", FORWARDS)
def test_values_and_gradients_are_eagers(name):
    eager = Field(FORWARDS[name])
    ours = ORTModule(copy.deepcopy(eager))
    for rows in (4, 5, 4):
        x = torch.randn(rows, 3, dtype=torch.float64)
        with sdpa_kernel(SDPBackend.MATH):  # torch 2.15 cannot differentiate its kernel of a CPU twice in a vmap
            expected = step(eager, x)
        for actual, wanted in zip(step(ours, x), expected, strict=True):
            torch.testing.assert_close(actual, wanted, rtol=1e-10, atol=1e-10)
    if name not in SIZED:
        anew = name in NESTED if torch.__version__ < (2, 13) else name in LOOPED and torch.__version__ >= (2, 15)
        assert ours._engine.captures == (2 if anew else 1)


def test_a_forward_under_no_grad_has_the_same_value():
    eager = Field(force)
    x = torch.randn(4, 3, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(ORTModule(copy.deepcopy(eager))(x), eager(x), rtol=1e-10, atol=1e-10)


def test_a_gradient_of_what_is_no_scalar_is_eagers_error():
    with pytest.raises(CaptureError, match="scalar"):
        ORTModule(Field(lambda self, x: func.grad(self.pair)(x)))(torch.randn(4, 3, dtype=torch.float64))


def tangents(self, x):
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        return torch.autograd.forward_ad.unpack_dual(self.pair(dual)).tangent


@pytest.mark.parametrize("forward", [tangents, lambda self, x: func.linearize(self.pair, x)[1](x)])
def test_tangents_beside_values_are_refused_with_a_way_out(forward):
    with pytest.raises(CaptureError, match="forward-mode") as caught:
        ORTModule(Field(forward))(torch.randn(4, 3, dtype=torch.float64))
    assert "torch.func.jvp" in str(caught.value)
    x = torch.ones(3, dtype=torch.float64)
    assert func.jvp(torch.sin, (x,), (x,))[1].equal(x.cos()), "torch's own is as it was"


def test_a_function_is_mapped_over_an_empty_batch():
    class Mapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x):
            return torch.vmap(lambda row: self.layer(row).tanh())(x[:0]).sum() + self.layer(x).sum()

    eager = Mapped()
    ours = ORTModule(copy.deepcopy(eager))
    x = torch.randn(4, 3)
    torch.testing.assert_close(ours(x), eager(x))
