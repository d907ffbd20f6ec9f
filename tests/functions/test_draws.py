"""Draws by bodies: their distributions, and their derivatives against those of scipy's quantiles."""

from __future__ import annotations

import numpy as np
import pytest

from tests.functions.test_gradients import run

special = pytest.importorskip("scipy.special")
stats = pytest.importorskip("scipy.stats")

SIZE = 4000


@pytest.mark.parametrize("alpha", [0.05, 0.7, 1.0, 4.0, 300.0])
def test_gamma_draws_have_their_distribution(alpha):
    (drawn,) = run("StandardGamma", np.full(SIZE, alpha))
    assert stats.kstest(drawn, stats.gamma(alpha).cdf).pvalue > 1e-5


def test_dirichlet_draws_have_their_distribution():
    alpha = np.array([0.4, 1.0, 5.0])
    (drawn,) = run("Dirichlet", np.broadcast_to(alpha, (SIZE, 3)).copy())
    np.testing.assert_allclose(drawn.sum(-1), 1.0, rtol=1e-12)
    for i, a in enumerate(alpha):
        assert stats.kstest(drawn[:, i], stats.beta(a, alpha.sum() - a).cdf).pvalue > 1e-5


def _fits(drawn, distribution):
    """A χ² test over the values that are expected ten times or more, and all others in one."""
    values = np.arange(int(drawn.max()) + 2)
    expected = distribution.pmf(values) * len(drawn)
    large = expected >= 10
    counted = np.array([(drawn == value).sum() for value in values[large]] + [(~np.isin(drawn, values[large])).sum()])
    expected = np.append(expected[large], len(drawn) - expected[large].sum())
    if expected[-1] < 1:
        assert counted[-1] <= 10
        counted, expected = counted[:-1], expected[:-1] * counted[:-1].sum() / expected[:-1].sum()
    return stats.chisquare(counted, expected).pvalue > 1e-5


@pytest.mark.parametrize("rate", [0.3, 4.0, 60.0])
def test_poisson_draws_have_their_distribution(rate):
    (drawn,) = run("Poisson", np.full(SIZE, rate))
    assert _fits(drawn, stats.poisson(rate))


@pytest.mark.parametrize(("count", "chance"), [(1, 0.3), (10, 0.5), (40, 0.9)])
def test_binomial_draws_have_their_distribution(count, chance):
    (drawn,) = run("Binomial", np.full(SIZE, float(count)), np.full(SIZE, chance))
    assert _fits(drawn, stats.binom(count, chance))


def test_draws_that_are_certain():
    (none,) = run("Poisson", np.zeros(50))
    (few,) = run("Binomial", np.array([0.0, 3.0, 3.0]), np.array([0.5, 0.0, 1.0]))
    assert not none.any() and few.tolist() == [0, 0, 3]


@pytest.mark.parametrize("alpha", [0.3, 1.0, 4.0, 50.0])
def test_the_derivative_of_a_gamma_draw_is_that_of_the_quantile(alpha):
    below = np.linspace(0.01, 0.99, 25)
    a = np.full(25, alpha)
    (slope,) = run("StandardGammaGrad", a, special.gammaincinv(a, below))
    h = 1e-5 * alpha
    expected = (special.gammaincinv(a + h, below) - special.gammaincinv(a - h, below)) / (2 * h)
    np.testing.assert_allclose(slope, expected, rtol=1e-6)


@pytest.mark.parametrize(("alpha", "beta"), [(0.5, 4.0), (1.0, 1.0), (6.0, 0.8), (10.0, 20.0)])
def test_the_derivative_of_a_dirichlet_draw_is_that_of_the_quantile(alpha, beta):
    below = np.linspace(0.05, 0.95, 19)
    a = np.full(19, alpha)
    x = special.betaincinv(a, beta, below)
    (slope,) = run("DirichletGrad", x, a, a + beta)
    h = 1e-5 * alpha
    expected = (special.betaincinv(a + h, beta, below) - special.betaincinv(a - h, beta, below)) / (2 * h) / (1 - x)
    np.testing.assert_allclose(slope, expected, rtol=1e-5)
