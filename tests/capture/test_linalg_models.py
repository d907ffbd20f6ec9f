"""Models made of linear algebra train equal to eager: orthogonal layers, whitening, Gaussian likelihoods, processes."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import distributions, nn
from torch.nn.utils import parametrizations

from ontrain.training.ortmodule import ORTModule

pytestmark = pytest.mark.sampled(2)


class Whitening(nn.Module):
    """A layer whose outputs have the unit matrix as their covariance, by the root of it or by its triangle."""

    def __init__(self, by_root):
        super().__init__()
        self.layer, self.by_root = nn.Linear(4, 3, bias=False), by_root

    def forward(self, x):
        y = self.layer(x)
        y = y - y.mean(0)
        covariance = y.mT @ y / len(x) + 1e-3 * torch.eye(3, dtype=x.dtype)
        if self.by_root:
            values, vectors = torch.linalg.eigh(covariance)
            return y @ (vectors * values.rsqrt()) @ vectors.mT
        return torch.linalg.solve_triangular(torch.linalg.cholesky(covariance), y.mT, upper=False).mT


class Gaussian(nn.Module):
    """The negative logarithm of a density whose mean and triangle are computed."""

    def __init__(self):
        super().__init__()
        self.mean, self.scale = nn.Linear(4, 3), nn.Parameter(torch.randn(3, 3))

    def forward(self, x):
        covariance = self.scale @ self.scale.mT + torch.eye(3, dtype=x.dtype)
        return -distributions.MultivariateNormal(self.mean(x), covariance).log_prob(x[:, :3])


class Process(nn.Module):
    """The marginal likelihood of a Gaussian process, with jitter where the covariance is not definite."""

    def __init__(self):
        super().__init__()
        self.logs = nn.Parameter(torch.zeros(3))

    def forward(self, x):
        length, scale, noise = self.logs.exp()
        covariance = scale * torch.exp(-torch.cdist(x, x).square() / length) + noise * torch.eye(len(x), dtype=x.dtype)
        factor, info = torch.linalg.cholesky_ex(covariance)
        if info.any():
            factor = torch.linalg.cholesky(covariance + 1e-4 * torch.eye(len(x), dtype=x.dtype))
        y = x.sum(-1, keepdim=True).sin()
        return (y * torch.cholesky_solve(y, factor)).sum() / 2 + factor.diagonal().log().sum()


def orthogonal(rows, columns, by):
    return lambda: parametrizations.orthogonal(nn.Linear(columns, rows), orthogonal_map=by)


MODELS = {
    **{f"orthogonal by {by}": orthogonal(4, 4, by) for by in ("householder", "matrix_exp", "cayley")},
    **{f"columns by {by}": orthogonal(6, 4, by) for by in ("householder", "matrix_exp", "cayley")},
    "rows by householder": orthogonal(3, 4, "householder"),
    "whitening by the root": lambda: Whitening(True),
    "whitening by the triangle": lambda: Whitening(False),
    "gaussian": Gaussian,
    "process": Process,
}


def _trains_equal(make, batches):
    torch.manual_seed(0)
    ours = make().double()
    eager = copy.deepcopy(ours)
    wrapped = ORTModule(ours)
    optimizers = [torch.optim.Adam(module.parameters(), 0.05) for module in (ours, eager)]
    for x in batches:
        for module, optimizer in zip((wrapped, eager), optimizers, strict=True):
            optimizer.zero_grad()
            module(x).sin().square().sum().backward()
            optimizer.step()
        for (name, p), q in zip(ours.named_parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-9, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("name", MODELS)
def test_steps_are_eagers(name):
    generator = torch.Generator().manual_seed(1)
    sizes = (8, 8, 11, 8)
    _trains_equal(MODELS[name], [torch.randn(n, 4, generator=generator, dtype=torch.float64) for n in sizes])


def test_an_exact_process_of_gpytorch_trains_equal():
    gpytorch = pytest.importorskip("gpytorch")
    x = torch.rand(12, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    y = x.sum(-1).mul(4).sin()

    class Exact(gpytorch.models.ExactGP):
        def __init__(self, likelihood):
            super().__init__(x, y, likelihood)
            self.mean = gpytorch.means.ConstantMean()
            self.covariance = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.covariance(x))

    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.likelihood = gpytorch.likelihoods.GaussianLikelihood()
            self.process = Exact(self.likelihood)
            self.marginal = gpytorch.mlls.ExactMarginalLogLikelihood(self.likelihood, self.process)

        def forward(self, x):
            return -self.marginal(self.process(x), y)

    _trains_equal(Loss, [x] * 3)
