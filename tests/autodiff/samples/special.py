"""Functions of mathematical physics. Their twins are integrals and sums that torch differentiates."""

from __future__ import annotations

import math

import numpy as np
import torch

from tests.autodiff.samples.sample import normal, sample, uniform


def _integral(function, low, high, points=200):
    """∫ function(x, t) dt by Gauss' and Legendre's points."""
    nodes, weights = np.polynomial.legendre.leggauss(points)
    places = torch.tensor((nodes + 1) * (high - low) / 2 + low)
    scale = torch.tensor(weights * (high - low) / 2)
    return lambda x: (function(x[..., None], places) * scale).sum(-1)


def _y(order):
    turning = _integral(lambda x, t: torch.sin(x * torch.sin(t) - order * t) / math.pi, 0, math.pi)

    def falling(x, t):
        return (torch.exp(order * t) + (-1) ** order * torch.exp(-order * t)) * torch.exp(-x * torch.sinh(t)) / math.pi

    return lambda x: turning(x) - _integral(falling, 0, 6)(x)


def _k(order, scaled):
    def decay(x, t):
        return torch.exp(-x * (torch.cosh(t) - scaled)) * torch.cosh(order * t)

    return _integral(decay, 0, 6)


def _airy(x):
    """The power series about zero, for a few units."""
    a = [3 ** (-2 / 3) / math.gamma(2 / 3), -(3 ** (-1 / 3)) / math.gamma(1 / 3), 0.0]
    for n in range(1, 60):
        a.append(a[n - 1] / ((n + 1) * (n + 2)))
    return sum(c * x**n for n, c in enumerate(a))


def _zeta(s, q):
    last = q + 40
    total = sum((q + k) ** -s for k in range(40)) + last ** (1 - s) / (s - 1) + last**-s / 2
    return total + s * last ** (-s - 1) / 12 - s * (s + 1) * (s + 2) * last ** (-s - 3) / 720


def _upper(a, x):
    """For a = 3."""
    return torch.exp(-x) * (1 + x + x**2 / 2)


def _special(name, *inputs, twin, **options):
    return sample(name, *inputs, domain="ontrain", twin=twin, **options)


SPECIAL = [
    _special("AiryAi", uniform(-2.0, 3.0, 6), twin=_airy),
    *(
        _special(name, uniform(-3.0, 3.0, 2, 3), twin=_integral(function, 0, math.pi))
        for name, function in {
            "BesselI0": lambda x, t: torch.exp(x * torch.cos(t)) / math.pi,
            "BesselI0e": lambda x, t: torch.exp(x * torch.cos(t) - x.abs()) / math.pi,
            "BesselI1": lambda x, t: torch.exp(x * torch.cos(t)) * torch.cos(t) / math.pi,
            "BesselI1e": lambda x, t: torch.exp(x * torch.cos(t) - x.abs()) * torch.cos(t) / math.pi,
            "BesselJ0": lambda x, t: torch.cos(x * torch.sin(t)) / math.pi,
            "BesselJ1": lambda x, t: torch.cos(t - x * torch.sin(t)) / math.pi,
        }.items()
    ),
    *(
        _special(f"BesselK{order}{'e' * scaled}", uniform(0.3, 4.0, 5), twin=_k(order, scaled))
        for order in (0, 1)
        for scaled in (0, 1)
    ),
    *(_special(f"BesselY{order}", uniform(0.5, 4.5, 5), twin=_y(order)) for order in (0, 1)),
    _special("Digamma", uniform(0.2, 5.0, 2, 3), twin=torch.digamma),
    _special("Digamma", uniform(-0.9, -0.1, 4), twin=torch.digamma),
    _special("Erfcx", uniform(-2.0, 5.0, 6), twin=torch.special.erfcx),
    _special("Erfinv", uniform(-0.9, 0.9, 2, 3), twin=torch.erfinv),
    _special("GammaP", np.full(5, 3.0), uniform(0.5, 9.0, 5), fixed=(0,), twin=lambda a, x: 1 - _upper(a, x)),
    _special("GammaQ", np.full((2, 1), 3.0), uniform(0.5, 9.0, 2, 3), fixed=(0,), twin=_upper),
    _special("LogGamma", uniform(0.2, 5.0, 2, 3), twin=torch.lgamma),
    _special("Ndtri", uniform(0.02, 0.98, 6), twin=torch.special.ndtri),
    *(
        _special("OrthogonalPolynomial", normal(2, 3), np.array(degree), fixed=(1,), family=family, twin=twin)
        for family, degree, twin in (
            ("chebyshev_polynomial_t", 3.0, lambda x, n: 4 * x**3 - 3 * x),
            ("shifted_chebyshev_polynomial_u", 2.0, lambda x, n: 4 * (2 * x - 1) ** 2 - 1),
            ("hermite_polynomial_h", 3.0, lambda x, n: 8 * x**3 - 12 * x),
            ("hermite_polynomial_he", 3.0, lambda x, n: x**3 - 3 * x),
            ("laguerre_polynomial_l", 2.0, lambda x, n: (x**2 - 4 * x + 2) / 2),
            ("legendre_polynomial_p", 3.0, lambda x, n: (5 * x**3 - 3 * x) / 2),
        )
    ),
    _special("Zeta", np.array([[2.0], [3.5]]), uniform(0.3, 4.0, 2, 3), fixed=(0,), twin=_zeta),
]
