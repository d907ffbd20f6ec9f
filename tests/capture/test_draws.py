"""Draws of torch.distributions in a module: where they can be differentiated, by what eager differentiates them."""

from __future__ import annotations

import pytest
import torch
from torch import distributions, nn

from ontrain.training.ortmodule import ORTModule

positive = nn.functional.softplus
SIZE = 3000


class Drawn(nn.Module):
    def __init__(self, function, size):
        super().__init__()
        self.weight, self.function = nn.Parameter(torch.linspace(-1, 2, size, dtype=torch.float64)), function

    def forward(self, x):
        return self.function(positive(self.weight)) + 0 * x.sum()


def _drawn(function, size):
    torch.manual_seed(0)
    module = Drawn(function, size)
    y = ORTModule(module)(torch.ones(1, dtype=torch.float64))
    weight = torch.randn(y.shape, dtype=torch.float64)
    if y.requires_grad:
        (y * weight).sum().backward()
    return module, y.detach(), weight


def _slope(module, drawn_slope):
    (expected,) = torch.autograd.grad(positive(module.weight), module.weight, drawn_slope)
    return expected


def test_a_gamma_draw_has_eagers_derivative():
    module, y, weight = _drawn(lambda a: distributions.Gamma(a, torch.ones_like(a)).rsample(), 7)
    slope = torch._standard_gamma_grad(positive(module.weight).detach(), y) * weight
    torch.testing.assert_close(module.weight.grad, _slope(module, slope), rtol=1e-12, atol=0)


def test_a_dirichlet_draw_has_eagers_derivative():
    module, y, weight = _drawn(lambda a: distributions.Dirichlet(a).rsample(), 5)
    alpha = positive(module.weight).detach()
    slope = torch._dirichlet_grad(y, alpha, alpha.sum().expand(5)) * (weight - (y * weight).sum())
    torch.testing.assert_close(module.weight.grad, _slope(module, slope), rtol=1e-12, atol=0)


DRAWS = {
    "gamma": (lambda a, n: distributions.Gamma(a, 2 * a).rsample((n,)), lambda a: 0.5 + 0 * a),
    "chi2": (lambda a, n: distributions.Chi2(a).rsample((n,)), lambda a: a),
    "beta": (lambda a, n: distributions.Beta(a, a + 1).rsample((n,)), lambda a: a / (2 * a + 1)),
    "dirichlet": (lambda a, n: distributions.Dirichlet(a).rsample((n,)), lambda a: a / a.sum()),
    "studentt": (lambda a, n: distributions.StudentT(a + 4, a, 1.0).rsample((n,)), lambda a: a),
    "fisher": (lambda a, n: distributions.FisherSnedecor(a + 5, a + 5).rsample((n,)), lambda a: (a + 5) / (a + 3)),
    "inverse gamma": (lambda a, n: distributions.InverseGamma(a + 4, a).rsample((n,)), lambda a: a / (a + 3)),
    "poisson": (lambda a, n: distributions.Poisson(a).sample((n,)) + 0 * a, lambda a: a),
    "binomial": (lambda a, n: distributions.Binomial(9, a / 4).sample((n,)) + 0 * a, lambda a: 9 * a / 4),
    "negative binomial": (lambda a, n: distributions.NegativeBinomial(a, 0.5 + 0 * a).sample((n,)), lambda a: a),
}  # fmt: skip


@pytest.mark.parametrize("name", DRAWS)
def test_draws_have_their_mean(name):
    function, mean = DRAWS[name]
    module, y, _ = _drawn(lambda a: function(a, SIZE), 4)
    error = 6 * y.std(0) / SIZE**0.5
    assert ((y.mean(0) - mean(positive(module.weight).detach())).abs() < error).all()
    assert (y[0] != y[1]).any()
