"""Bessel's and Airy's functions in standard operators: integrals by midpoints, and asymptotic series beyond them.

The integral of a periodic function by midpoints has an error that falls faster than any power of their distance
(Trefethen and Weideman, The exponentially convergent trapezoidal rule, 2014).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.functions.registry import composite
from ontrain.functions.special import polynomial
from ontrain.graph import Builder
from ontrain.operators import Value

__all__: list[str] = []

Array = np.ndarray[Any, Any]

_POINTS = 32
_ANGLES = (np.arange(_POINTS) + 0.5) * (math.pi / 2 / _POINTS)
"""Midpoints of a quarter turn."""
_FAR = 25.0
"""From here on asymptotic series of 24 terms; up to here the integrals' error is J₁₂₈(25) < 1e-70."""
_TERMS = 24
_GAMMA = float(np.euler_gamma)


def _average(op: Builder, function: Value, weights: Array) -> Value:
    """The weighted mean over the last axis."""
    return op.ReduceSum(function * op.const(weights / _POINTS, function.dtype), [-1], keepdims=0)


def _at(op: Builder, x: Value, places: Array) -> Value:
    """x times each of the places, along a new last axis."""
    return op.Unsqueeze(x, [-1]) * op.const(places, x.dtype)


def _hankel(order: int) -> list[float]:
    """The coefficients a_k(ν) of the asymptotic series. Source: https://dlmf.nist.gov/10.17#E1"""
    coefficients = [1.0]
    for k in range(1, _TERMS):
        coefficients.append(coefficients[-1] * (4 * order**2 - (2 * k - 1) ** 2) / (k * 8))
    return coefficients


def _parted(op: Builder, x: Value, bound: float) -> tuple[Value, Value, Value]:
    """Whether x lies beyond the bound, x up to it, and x from it on."""
    far = op.Greater(x, op.const(bound, x.dtype))
    limit = op.const(bound, x.dtype)
    return far, op.Where(far, limit, x), op.Where(far, x, limit)


def _waves(op: Builder, x: Value, order: int, turn: float) -> Value:
    """√(2 / πx) (P cos χ − Q sin χ) with χ = x − (ν / 2 + 1 / 4) π + turn. Source: https://dlmf.nist.gov/10.17#E3"""
    coefficients = _hankel(order)
    square = 1.0 / (x * x)
    p = polynomial(op, square, [c * (-1) ** k for k, c in enumerate(coefficients[::2])])
    q = polynomial(op, square, [c * (-1) ** k for k, c in enumerate(coefficients[1::2])]) / x
    angle = x + (turn - (order / 2 + 0.25) * math.pi)
    return op.Sqrt((2 / math.pi) / x) * (p * op.Cos(angle) - q * op.Sin(angle))


@composite("BesselJ0", like=[0])
def j0(op: Builder, x: Value) -> Value:
    """(1/π) ∫ cos(x sin θ) over half a turn. Source: https://dlmf.nist.gov/10.9#E1"""
    far, near, beyond = _parted(op, op.Abs(x), _FAR)
    return op.Where(far, _waves(op, beyond, 0, 0.0), _j0(op, near))


def _j0(op: Builder, x: Value) -> Value:
    return _average(op, op.Cos(_at(op, x, np.sin(_ANGLES))), np.ones(_POINTS))


@composite("BesselJ1", like=[0])
def j1(op: Builder, x: Value) -> Value:
    """(x/π) ∫ cos(x cos θ) sin² θ over half a turn. Source: https://dlmf.nist.gov/10.9#E4"""
    far, near, beyond = _parted(op, op.Abs(x), _FAR)
    return op.Sign(x) * op.Where(far, _waves(op, beyond, 1, 0.0), _j1(op, near))


def _j1(op: Builder, x: Value) -> Value:
    return x * _average(op, op.Cos(_at(op, x, np.cos(_ANGLES))), np.sin(_ANGLES) ** 2)


def _neumann() -> Array:
    """The weights that make of cos(x sin θ) the sum Σ (−1)^k J_2k(x) / k."""
    orders = np.arange(1, _POINTS + 1)[:, None]
    return np.asarray(((-1.0) ** orders * np.cos(2 * orders * _ANGLES) / orders).sum(0))


@composite("BesselY0", like=[0])
def y0(op: Builder, x: Value) -> Value:
    """(2/π) (log(x/2) + γ) J₀ − (4/π) Σ (−1)^k J_2k / k, the sum by the integrals of all J_2k at once.

    Source: https://dlmf.nist.gov/10.8#E2, in Neumann's form
    """
    far, near, beyond = _parted(op, x, _FAR)
    rest = _average(op, op.Cos(_at(op, near, np.sin(_ANGLES))), _neumann() * (4 / math.pi))
    inner = (op.Log(near * 0.5) + _GAMMA) * (2 / math.pi) * _j0(op, near) - rest
    return op.Where(far, _waves(op, beyond, 0, -math.pi / 2), inner)


@composite("BesselY1", like=[0])
def y1(op: Builder, x: Value) -> Value:
    """The derivative of −Y₀, term by term."""
    far, near, beyond = _parted(op, x, _FAR)
    sine = np.sin(_ANGLES)
    rest = _average(op, op.Sin(_at(op, near, sine)), _neumann() * sine * (4 / math.pi))
    inner = (op.Log(near * 0.5) + _GAMMA) * (2 / math.pi) * _j1(op, near) - rest
    inner = inner - _j0(op, near) / near * (2 / math.pi)
    inner = op.Where(op.Equal(x, op.const(0.0, x.dtype)), op.const(-math.inf, x.dtype), inner)
    return op.Where(far, _waves(op, beyond, 1, -math.pi / 2), inner)


def _i0e(op: Builder, x: Value) -> Value:
    """e^(−x) I₀(x) for x ≥ 0. Source: https://dlmf.nist.gov/10.32#E1"""
    far, near, beyond = _parted(op, x, _FAR)
    wide = np.concatenate([np.cos(_ANGLES), -np.cos(_ANGLES)]) - 1
    inner = _average(op, op.Exp(_at(op, near, wide)), np.full(2 * _POINTS, 0.5))
    return op.Where(far, _decay(op, beyond, 0), inner)


def _i1e(op: Builder, x: Value) -> Value:
    """e^(−x) I₁(x) for x ≥ 0. Source: https://dlmf.nist.gov/10.32#E2"""
    far, near, beyond = _parted(op, x, _FAR)
    wide = np.concatenate([np.cos(_ANGLES), -np.cos(_ANGLES)]) - 1
    weights = np.tile(np.sin(_ANGLES) ** 2 / 2, 2)
    return op.Where(far, _decay(op, beyond, 1), near * _average(op, op.Exp(_at(op, near, wide)), weights))


def _decay(op: Builder, x: Value, order: int) -> Value:
    """Source: https://dlmf.nist.gov/10.40#E1"""
    series = polynomial(op, 1.0 / x, [c * (-1) ** k for k, c in enumerate(_hankel(order))])
    return series * op.Sqrt((0.5 / math.pi) / x)


@composite("BesselI0", like=[0])
def i0(op: Builder, x: Value) -> Value:
    """I₀, of which I₀(x) e^(−|x|) is computed."""
    size = op.Abs(x)
    return op.Exp(size) * _i0e(op, size)


@composite("BesselI0e", like=[0])
def i0e(op: Builder, x: Value) -> Value:
    """I₀(x) e^(−|x|)."""
    return _i0e(op, op.Abs(x))


@composite("BesselI1", like=[0])
def i1(op: Builder, x: Value) -> Value:
    """I₁, of which I₁(x) e^(−|x|) is computed."""
    size = op.Abs(x)
    return op.Sign(x) * op.Exp(size) * _i1e(op, size)


@composite("BesselI1e", like=[0])
def i1e(op: Builder, x: Value) -> Value:
    """I₁(x) e^(−|x|)."""
    return op.Sign(x) * _i1e(op, op.Abs(x))


_DECAYS = np.arange(27) / 3
"""Places of e^(−s²/2) a third apart, to where it is 5e-17."""


def _k_integral(op: Builder, x: Value, order: float) -> Value:
    """e^x K_ν(x) for x ≥ 1: x^(−½) ∫ e^(−s²/2) cosh(νt) / √(1 + s²/4x), where cosh t = 1 + s²/2x.

    Source: https://dlmf.nist.gov/10.32#E9
    """
    weights = np.exp(-(_DECAYS**2) / 2) / 3
    weights[0] /= 2
    half = op.const(_DECAYS / 2, x.dtype) / op.Sqrt(op.Unsqueeze(x, [-1]))  # sinh of half of t
    square = half * half
    values = op.const(weights, x.dtype) / op.Sqrt(square + 1.0)
    if order == 1:
        values = values * (square * 2.0 + 1.0)
    elif order:
        values = values * op.Cosh(op.Asinh(half) * (2 * order))
    return op.ReduceSum(values, [-1], keepdims=0) / op.Sqrt(x)


def _harmonic(count: int) -> list[float]:
    return [math.fsum(1 / i for i in range(1, k + 1)) for k in range(count)]


def _k0(op: Builder, x: Value) -> tuple[Value, Value, Value]:
    """Whether x is above 1, K₀ below by its series, e^x K₀ above by the integral. Source: dlmf.nist.gov/10.31#E2"""
    far, near, beyond = _parted(op, x, 1.0)
    squares = [1 / math.factorial(k) ** 2 for k in range(12)]
    t = near * near * 0.25
    series = polynomial(op, t, [c * h for c, h in zip(squares, _harmonic(12), strict=True)])
    inner = series - (op.Log(near * 0.5) + _GAMMA) * polynomial(op, t, squares)
    return far, inner, _k_integral(op, beyond, 0)


def _k1(op: Builder, x: Value) -> tuple[Value, Value, Value]:
    """Whether x is above 1, K₁ below by its series, e^x K₁ above by the integral. Source: dlmf.nist.gov/10.31#E1"""
    far, near, beyond = _parted(op, x, 1.0)
    products = [1 / (math.factorial(k) * math.factorial(k + 1)) for k in range(12)]
    sums = [h + 1 / (2 * (k + 1)) - _GAMMA for k, h in enumerate(_harmonic(12))]
    t = near * near * 0.25
    series = polynomial(op, t, [c * s for c, s in zip(products, sums, strict=True)])
    inner = 1.0 / near + near * 0.5 * (op.Log(near * 0.5) * polynomial(op, t, products) - series)
    inner = op.Where(op.Equal(x, op.const(0.0, x.dtype)), op.const(math.inf, x.dtype), inner)
    return far, inner, _k_integral(op, beyond, 1)


@composite("BesselK0", like=[0])
def k0(op: Builder, x: Value) -> Value:
    """K₀ of what is not negative."""
    far, inner, outer = _k0(op, x)
    return op.Where(far, outer * op.Exp(-x), inner)


@composite("BesselK0e", like=[0])
def k0e(op: Builder, x: Value) -> Value:
    """K₀(x) e^x."""
    far, inner, outer = _k0(op, x)
    return op.Where(far, outer, inner * op.Exp(x))


@composite("BesselK1", like=[0])
def k1(op: Builder, x: Value) -> Value:
    """K₁ of what is not negative."""
    far, inner, outer = _k1(op, x)
    return op.Where(far, outer * op.Exp(-x), inner)


@composite("BesselK1e", like=[0])
def k1e(op: Builder, x: Value) -> Value:
    """K₁(x) e^x."""
    far, inner, outer = _k1(op, x)
    return op.Where(far, outer, inner * op.Exp(x))


_AIRY_LEFT, _AIRY_STEP, _AIRY_TERMS = 12, 2, 22


def _airy_expansions() -> Array:
    """Taylor's coefficients of Ai about 1, ½, 0, … down to −12: [place, power].

    Each pair of value and slope follows from the one before it, by y″ = xy.
    """

    def coefficients(centre: float, value: float, slope: float) -> Array:
        a = np.zeros(_AIRY_TERMS)
        a[:2] = value, slope
        for n in range(_AIRY_TERMS - 2):
            a[n + 2] = (centre * a[n] + (a[n - 1] if n else 0.0)) / ((n + 1) * (n + 2))
        return a

    def walked(sign: int, count: int) -> list[Array]:
        rows, centre = [coefficients(0.0, value, slope)], 0.0
        for _ in range(count):
            h = sign / _AIRY_STEP
            powers = h ** np.arange(_AIRY_TERMS)
            y, dy = rows[-1] @ powers, (rows[-1][1:] * np.arange(1, _AIRY_TERMS)) @ powers[:-1]
            centre += h
            rows.append(coefficients(centre, float(y), float(dy)))
        return rows

    value, slope = 3 ** (-2 / 3) / math.gamma(2 / 3), -(3 ** (-1 / 3)) / math.gamma(1 / 3)
    right, left = walked(1, 2 * _AIRY_STEP), walked(-1, _AIRY_LEFT * _AIRY_STEP)
    return np.stack([*right[:0:-1], *left])


@composite("AiryAi", like=[0])
def airy(op: Builder, x: Value) -> Value:
    """Ai: above 2 by K of order ⅓, below −12 by its asymptotic series, between by Taylor's series half a unit apart.

    Source: https://dlmf.nist.gov/9.6#E2 and https://dlmf.nist.gov/9.7#E9
    """
    high, low = op.Greater(x, op.const(2.0, x.dtype)), op.Less(x, op.const(-float(_AIRY_LEFT), x.dtype))
    middle = op.Clip(x, op.const(-float(_AIRY_LEFT), x.dtype), op.const(2.0, x.dtype))
    middle = op.Where(op.IsNaN(x), op.const(0.0, x.dtype), middle)
    place = op.Round(middle * float(_AIRY_STEP))
    rows = op.Gather(
        op.const(_airy_expansions(), x.dtype),
        op.Cast(2.0 * _AIRY_STEP - place, to=ir.DataType.INT64),
        axis=0,
    )
    rest = middle - place * (1 / _AIRY_STEP)
    inner = _horner(op, rows, rest)

    above = op.Where(high, x, op.const(2.0, x.dtype))
    zeta = above * op.Sqrt(above) * (2 / 3)
    right = op.Sqrt(above * (1 / 3)) * _k_integral(op, zeta, 1 / 3) * op.Exp(-zeta) * (1 / math.pi)

    below = op.Where(low, -x, op.const(float(_AIRY_LEFT), x.dtype))
    zeta = below * op.Sqrt(below) * (2 / 3)
    u = [1.0]
    for k in range(1, 20):
        u.append(u[-1] * (6 * k - 5) * (6 * k - 3) * (6 * k - 1) / (216 * k * (2 * k - 1)))
    square = 1.0 / (zeta * zeta)
    even = polynomial(op, square, [c * (-1) ** k for k, c in enumerate(u[::2])])
    odd = polynomial(op, square, [c * (-1) ** k for k, c in enumerate(u[1::2])]) / zeta
    angle = zeta - math.pi / 4
    left = (op.Cos(angle) * even + op.Sin(angle) * odd) / op.Sqrt(op.Sqrt(below)) * (1 / math.sqrt(math.pi))
    value = op.Where(high, right, op.Where(low, left, inner))
    return op.Where(op.IsNaN(x), x, value)


def _horner(op: Builder, rows: Value, x: Value) -> Value:
    """The polynomials whose coefficients are the rows […, power], at x […]."""
    power = op.const(np.array(_AIRY_TERMS - 1, np.int64))
    value = op.Gather(rows, power, axis=-1)
    for k in range(_AIRY_TERMS - 2, -1, -1):
        value = value * x + op.Gather(rows, op.const(np.array(k, np.int64)), axis=-1)
    return value
