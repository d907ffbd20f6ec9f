"""Functions of mathematical physics: bodies in onnx's evaluator against scipy's, over their ranges and edges.

torch's own Bessel functions are the oracle of nothing here: between 5 and 8 they are off by up to 2e-5.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.functions.test_gradients import run

special = pytest.importorskip("scipy.special")

INF, NAN = np.inf, np.nan
BOTH = np.concatenate([np.linspace(-60, 60, 241), [1e-9, -1e-9, 25.0, 24.999, 600.0, -600.0, 0.0]])
POSITIVE = np.concatenate([np.geomspace(1e-6, 600, 200), [0.0, 1.0, 2.0, 25.0]])
UNIT = np.concatenate([np.geomspace(1e-300, 0.5, 60), 1 - np.geomspace(1e-15, 0.5, 30), [0.0, 1.0, -1.0, 2.0]])
FUNCTIONS = {
    "AiryAi": (lambda x: special.airy(x)[0], np.concatenate([np.linspace(-40, 40, 321), [-12.0, 2.0, NAN]])),
    "BesselI0": (special.i0, BOTH),
    "BesselI0e": (special.i0e, BOTH),
    "BesselI1": (special.i1, BOTH),
    "BesselI1e": (special.i1e, BOTH),
    "BesselJ0": (special.j0, BOTH),
    "BesselJ1": (special.j1, BOTH),
    "BesselK0": (special.k0, POSITIVE),
    "BesselK0e": (special.k0e, POSITIVE),
    "BesselK1": (special.k1, POSITIVE),
    "BesselK1e": (special.k1e, POSITIVE),
    "BesselY0": (special.y0, np.append(POSITIVE, -1.0)),
    "BesselY1": (special.y1, np.append(POSITIVE, -1.0)),
    "Digamma": (special.digamma, np.append(BOTH + 0.01, [-3.0])),
    "Erfcx": (special.erfcx, np.linspace(-26, 300, 653)),
    "Erfinv": (special.erfinv, np.concatenate([np.linspace(-1, 1, 101), [1.5, 1e-9]])),
    "LogGamma": (special.gammaln, np.concatenate([POSITIVE[:-4], -POSITIVE[:150:7]])),
    "Ndtri": (special.ndtri, UNIT),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_body_is_the_function(name):
    function, x = FUNCTIONS[name]
    (y,) = run(name, x)
    np.testing.assert_allclose(y, function(x), rtol=1e-11, atol=1e-15)


def _torch(name, *arrays):
    return getattr(torch.special, name)(*map(torch.tensor, arrays)).numpy()


def test_zeta_is_torchs():
    s, q = np.meshgrid([1.0, 1.5, 2.0, 5.0, 20.0, 0.5], [1e-3, 0.3, 1.0, 7.7, 1e3, 1e6, 0.0, -3.0, -2.5, -20.5])
    (y,) = run("Zeta", s, q)
    np.testing.assert_allclose(y, _torch("zeta", s, q), rtol=1e-12, atol=1e-14)


def test_both_parts_of_the_incomplete_gamma_function_are_torchs():
    points = [0.0, 1e-6, 0.1, 1.0, 3.0, 38.0, 160.0, 400.0, INF]
    a, x = np.meshgrid([0.0, 1e-3, 0.5, 1.0, 3.3, 40.0, 150.0, -1.0], points)
    for name, function in {"GammaP": "gammainc", "GammaQ": "gammaincc"}.items():
        (y,) = run(name, a, x)
        np.testing.assert_allclose(y, _torch(function, a, x), rtol=1e-9, atol=1e-14)


FAMILIES = [
    *(f"{shifted}chebyshev_polynomial_{kind}" for shifted in ("", "shifted_") for kind in "tuvw"),
    "hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p",
]  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_polynomials_are_torchs(family):
    x, degree = np.meshgrid(np.linspace(-1.5, 1.5, 13), [-1.0, 0.0, 1.0, 2.0, 3.7, 9.0])
    (y,) = run("OrthogonalPolynomial", x, degree, family=family)
    expected = _torch(family, x, degree)
    np.testing.assert_allclose(y, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.int8])
def test_the_greatest_common_divisor_is_numpys(rng, dtype):
    a, b = rng.integers(-120, 120, (2, 5, 40)).astype(dtype)
    b[0, :3] = 0
    a[0, 0] = 0
    (y,) = run("Gcd", a, b)
    assert y.dtype == dtype and (y == np.gcd(a, b)).all()


def test_neighbours_of_fibonaccis_numbers_take_the_most_divisions():
    (y,) = run("Gcd", np.array([7540113804746346429]), np.array([4660046610375530309]))
    assert y.tolist() == [1]
