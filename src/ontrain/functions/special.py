"""Gamma, zeta and error functions in standard operators, by series whose truncation is below double precision."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.functions.registry import composite
from ontrain.graph import Builder, repeat, static_dims
from ontrain.operators import Value

__all__ = ["polynomial"]

# Lanczos' series for g = 7 (Godfrey's coefficients, numericana.com/answer/info/godfrey.htm).
_LANCZOS = (
    0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059,
    12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7,
)  # fmt: skip
# Bernoulli's numbers of even order, from the second.
_BERNOULLI = (
    1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798, -174611 / 330,
    854513 / 138, -236364091 / 2730,
)  # fmt: skip
_STEPS = 300
"""Of the series of the incomplete gamma function: enough for arguments up to some hundreds."""


def polynomial(op: Builder, x: Value, coefficients: Sequence[float]) -> Value:
    """Σ c_k x^k, with the coefficients from the power zero up."""
    y = op.const(float(coefficients[-1]), x.dtype)
    for coefficient in reversed(coefficients[:-1]):
        y = y * x + coefficient
    return y


def _halves(op: Builder, x: Value) -> tuple[Value, Value]:
    """Whether x lies where the reflection formula is needed, and x or 1 - x, whichever is at least one half."""
    reflected = op.Less(x, op.const(0.5, x.dtype))
    return reflected, op.Where(reflected, 1.0 - x, x)


@composite("LogGamma", like=[0])
def log_gamma(op: Builder, x: Value) -> Value:
    """log |Γ(x)|: Lanczos for x ≥ 1/2, else log(π / |sin πx|) - lgamma(1 - x)."""
    reflected, high = _halves(op, x)
    z = high - 1.0
    series = op.const(_LANCZOS[0], x.dtype)
    for i, coefficient in enumerate(_LANCZOS[1:], 1):
        series = series + coefficient / (z + float(i))
    t = z + 7.5
    above = (z + 0.5) * op.Log(t) - t + op.Log(series) + 0.5 * math.log(2 * math.pi)
    sine = op.Abs(op.Sin(op.Where(reflected, x - op.Floor(x), op.const(0.5, x.dtype)) * math.pi))
    return op.Where(reflected, op.Log(math.pi / sine) - above, above)


@composite("Digamma", like=[0])
def digamma(op: Builder, x: Value) -> Value:
    """ψ(x): raised by ψ(x) = ψ(x + 1) - 1/x to where the asymptotic series holds; reflected below 1/2."""
    reflected, high = _halves(op, x)
    steps = 1.0 / high
    for i in range(1, 8):
        steps = steps + 1.0 / (high + float(i))
    z = high + 8.0
    square = 1.0 / (z * z)
    tail = square * polynomial(op, square, [b / (2 * k) for k, b in enumerate(_BERNOULLI[:7], 1)])
    above = op.Log(z) - 0.5 / z - tail - steps
    angle = op.Where(reflected, x - op.Floor(x), op.const(0.25, x.dtype)) * math.pi
    below = above - math.pi / op.Tan(angle)
    pole = op.And(reflected, op.Equal(x, op.Floor(x)))
    return op.Where(pole, op.const(math.nan, x.dtype), op.Where(reflected, below, above))


@composite("Erfinv", like=[0])
def erfinv(op: Builder, x: Value) -> Value:
    """Winitzki's approximation, then three of Newton's steps."""
    a, unit = 0.147, op.const(1.0, x.dtype)
    edge = op.GreaterOrEqual(op.Abs(x), unit)
    inner = op.Where(edge, op.const(0.0, x.dtype), x)
    log = op.Log(1.0 - inner * inner)
    half = log * 0.5 + 2 / (math.pi * a)
    y = op.Sign(inner) * op.Sqrt(op.Sqrt(half * half - log * (1 / a)) - half)
    for _ in range(3):
        y = y - (op.Erf(y) - inner) * op.Exp(y * y) * (math.sqrt(math.pi) / 2)
    low = op.Where(op.Equal(x, -unit), op.const(-math.inf, x.dtype), op.const(math.nan, x.dtype))
    return op.Where(edge, op.Where(op.Equal(x, unit), op.const(math.inf, x.dtype), low), y)


@composite("Erfcx", like=[0])
def erfcx(op: Builder, x: Value) -> Value:
    """e^(x²) erfc(x): from 2 on (x / π) ∫ e^(−t²) / (x² + t²) dt by midpoints a quarter apart.

    Source: Chiarella and Reichel, On the evaluation of integrals related to the error function, 1968.
    """
    large = op.Greater(x, op.const(2.0, x.dtype))
    near, far = op.Where(large, op.const(0.0, x.dtype), x), op.Where(large, x, op.const(2.0, x.dtype))
    places = (np.arange(26) + 0.5) / 4
    weights = op.const(np.exp(-(places**2)) / (2 * math.pi), x.dtype)
    parts = weights / (op.Unsqueeze(far * far, [-1]) + op.const(places**2, x.dtype))
    return op.Where(large, far * op.ReduceSum(parts, [-1], keepdims=0), op.Exp(near * near) * (1.0 - op.Erf(near)))


@composite("Ndtri", like=[0])
def ndtri(op: Builder, x: Value) -> Value:
    """The inverse of the normal distribution's function: Hastings' approximation, then three of Newton's steps.

    The steps are of the logarithm of the tail, so that small tails keep their digits.
    Source: Abramowitz and Stegun, Handbook of mathematical functions, 26.2.22.
    """
    zero, unit, half = (op.const(value, x.dtype) for value in (0.0, 1.0, 0.5))
    inside, low = op.And(op.Greater(x, zero), op.Less(x, unit)), op.Less(x, half)
    log = op.Log(op.Where(inside, op.Where(low, x, 1.0 - x), half))
    t = op.Sqrt(log * -2.0)
    y = t - (t * 0.27061 + 2.30753) / (1.0 + t * 0.99229 + t * t * 0.04481)
    for _ in range(4):
        tail = op.composite("Erfcx", y * math.sqrt(0.5))
        y = y + (op.Log(tail * 0.5) - y * y * 0.5 - log) * tail * math.sqrt(math.pi / 2)
    beyond = op.Where(op.Equal(x, unit), op.const(math.inf, x.dtype), op.const(math.nan, x.dtype))
    beyond = op.Where(op.Equal(x, zero), op.const(-math.inf, x.dtype), beyond)
    return op.Where(inside, op.Where(low, -y, y), beyond)


def _broadcast(inputs: Sequence[Any], **_: object) -> list[tuple[ir.DataType, ir.Shape]]:
    """The first operand's dtype, and the shape that both broadcast to."""
    shapes = [list(value.shape) for value in inputs[:2]]
    rank = max(map(len, shapes))
    padded = [[1] * (rank - len(shape)) + shape for shape in shapes]
    return [(inputs[0].dtype, ir.Shape([b if a == 1 else a for a, b in zip(*padded, strict=True)]))]


def _both(op: Builder, a: Value, b: Value) -> tuple[Value, Value]:
    """Both in the shape that they broadcast to."""
    return _expanded(op, a, b), _expanded(op, b, a)


def _expanded(op: Builder, a: Value, b: Value) -> Value:
    """The first in the shape that both broadcast to; where that varies, the shape of an Expand would not be known."""
    if a.shape is not None and b.shape is not None and a.shape.is_static() and b.shape.is_static():
        return op.Expand(a, np.broadcast_shapes(static_dims(a), static_dims(b)))
    return op.Where(op.const(True), a, b)


@composite("Zeta", infer=_broadcast)
def zeta(op: Builder, s: Value, q: Value) -> Value:
    """Hurwitz' Σ (q + k)^(−s) by the sum up to q + k > 9, and the formula of Euler and Maclaurin for the rest.

    Source: https://dlmf.nist.gov/25.11#E5
    """
    s, q = _both(op, s, q)
    zero, unit = op.const(0.0, s.dtype), op.const(1.0, s.dtype)

    def term(
        op: Builder, at: Value, states: Sequence[Any], scanned: Sequence[Any], captured: Sequence[Any]
    ) -> tuple[None, list[Value], list[Value]]:
        (total, a), (s,) = states, captured
        before = op.Or(op.LessOrEqual(a, op.const(9.0, a.dtype)), op.Less(at, op.const(np.array(9, np.int64))))
        power = op.Where(before, op.Pow(op.Where(before, a, op.const(1.0, a.dtype)), -s), op.const(0.0, a.dtype))
        return None, [total + power, op.Where(before, a + 1.0, a)], []

    lowest = op.ReduceMin(q, keepdims=0)
    lowest = op.Where(op.Greater(lowest, op.const(-1e4, s.dtype)), lowest, zero)  # not for what is no number
    trip = op.Cast(op.Max(op.const(10.0, s.dtype), 11.0 - op.Floor(lowest)), to=ir.DataType.INT64)
    (total, a), _ = repeat(op, term, trip=trip, carried=[_expanded(op, zero, q), q], captured=[s])
    last = op.Pow(a, -s)
    total = total + last * a / (s - 1.0) + last * 0.5
    factor = s * last / a
    for k, number in enumerate(_BERNOULLI, 1):
        total = total + factor * (number / math.factorial(2 * k))
        factor = factor * (s + (2.0 * k - 1)) * (s + 2.0 * k) / (a * a)
    pole = op.And(op.LessOrEqual(q, zero), op.Equal(q, op.Floor(q)))
    total = op.Where(op.Or(pole, op.Equal(s, unit)), op.const(math.inf, s.dtype), total)
    wrong = op.Or(op.Less(s, unit), op.And(op.Less(q, zero), op.And(op.Not(pole), op.Not(op.Equal(s, op.Floor(s))))))
    return op.Where(wrong, op.const(math.nan, s.dtype), total)


@composite("GammaP", infer=_broadcast)
def gamma_p(op: Builder, a: Value, x: Value) -> Value:
    """The lower incomplete gamma function over Γ(a)."""
    return _incomplete(op, a, x)[0]


@composite("GammaQ", infer=_broadcast)
def gamma_q(op: Builder, a: Value, x: Value) -> Value:
    """The upper incomplete gamma function over Γ(a)."""
    return _incomplete(op, a, x)[1]


def _incomplete(op: Builder, a: Value, x: Value) -> tuple[Value, Value]:
    """Both parts: below a + 1 by the lower one's series, above by the upper one's continued fraction.

    Source: https://dlmf.nist.gov/8.7#E1 and https://dlmf.nist.gov/8.9#E2
    """
    a, x = _both(op, a, x)
    zero, unit = op.const(0.0, a.dtype), op.const(1.0, a.dtype)
    wrong = op.Or(op.Less(x, zero), op.Less(a, zero))
    inner = op.And(op.Greater(x, zero), op.And(op.Greater(a, zero), op.Not(op.IsInf(x))))
    b, z = op.Where(inner, a, unit), op.Where(inner, x, unit)
    low = op.Less(z, b + 1.0)
    front = op.Exp(b * op.Log(z) - z - op.composite("LogGamma", b + 1.0))
    lower = front * _series(op, b, op.Where(low, z, unit))
    upper = front * b * _fraction(op, b, op.Where(low, b + 1.0, z))
    p, q = op.Where(low, lower, 1.0 - upper), op.Where(low, 1.0 - lower, upper)
    # At the edges: all of the mass is below an infinite x, and above a zero one; all of it is at zero for a zero a.
    full = op.Or(op.IsInf(x), op.Equal(a, zero))
    nan, start = op.const(math.nan, a.dtype), op.And(op.Equal(x, zero), op.Not(op.Equal(a, zero)))
    both = op.And(op.Equal(a, zero), op.Equal(x, zero))
    wrong = op.Or(wrong, both)
    p = op.Where(inner, p, op.Where(start, zero, op.Where(full, unit, nan)))
    q = op.Where(inner, q, op.Where(start, unit, op.Where(full, zero, nan)))
    return op.Where(wrong, nan, p), op.Where(wrong, nan, q)


def _series(op: Builder, a: Value, x: Value) -> Value:
    """Σ xⁿ / ((a + 1) … (a + n))."""

    def term(
        op: Builder, at: Value, states: Sequence[Any], scanned: Sequence[Any], captured: Sequence[Any]
    ) -> tuple[None, list[Value], list[Value]]:
        (total, power), (a, x) = states, captured
        power = power * x / (a + op.Cast(at, to=a.dtype) + 1.0)
        return None, [total + power, power], []

    unit = x * 0.0 + 1.0
    (total, _), _ = repeat(op, term, trip=_STEPS, carried=[unit, unit], captured=[a, x])
    return total


def _fraction(op: Builder, a: Value, x: Value) -> Value:
    """1 / (x + 1 − a − 1 (1 − a) / (x + 3 − a − 2 (2 − a) / …)), by Lentz' products."""

    def term(
        op: Builder, at: Value, states: Sequence[Any], scanned: Sequence[Any], captured: Sequence[Any]
    ) -> tuple[None, list[Value], list[Value]]:
        (product, c, d), (a, x) = states, captured
        i = op.Cast(at, to=a.dtype) + 1.0
        above, below = i * (a - i), x - a + i * 2.0 + 1.0
        d = 1.0 / (below + above * d)
        c = below + above / c
        return None, [product * c * d, c, d], []

    first = 1.0 / (x + 1.0 - a)
    start = first * 0.0 + 1e30
    (product, _, _), _ = repeat(op, term, trip=_STEPS, carried=[first, start, first], captured=[a, x])
    return product


_RECURRENCES = {
    "chebyshev_polynomial_t": (0.0, 1.0),
    "chebyshev_polynomial_u": (0.0, 2.0),
    "chebyshev_polynomial_v": (-1.0, 2.0),
    "chebyshev_polynomial_w": (1.0, 2.0),
    "hermite_polynomial_h": (0.0, 2.0),
    "hermite_polynomial_he": (0.0, 1.0),
    "laguerre_polynomial_l": (1.0, -1.0),
    "legendre_polynomial_p": (0.0, 1.0),
}
"""The polynomial of degree one, as constant and slope, of each family: that of degree zero is one."""


def _next(family: str, x: Value, k: Value, now: Value, before: Value) -> Value:
    """The polynomial of degree k + 1 from those of degrees k and k − 1. Source: https://dlmf.nist.gov/18.9#T1"""
    if family.startswith("chebyshev"):
        return x * now * 2.0 - before
    if family == "hermite_polynomial_h":
        return (x * now - k * before) * 2.0
    if family == "hermite_polynomial_he":
        return x * now - k * before
    if family == "laguerre_polynomial_l":
        return ((k * 2.0 + 1.0 - x) * now - k * before) / (k + 1.0)
    return ((k * 2.0 + 1.0) * x * now - k * before) / (k + 1.0)


@composite("OrthogonalPolynomial", infer=_broadcast)
def orthogonal_polynomial(op: Builder, x: Value, degree: Value, *, family: str = "legendre_polynomial_p") -> Value:
    """The polynomial of the family, as torch.special names it, that has the degree, truncated; zero below degree zero.

    A family whose name begins with `shifted_` is the other one at 2x − 1.
    """
    x, degree = _both(op, x, op.Cast(degree, to=x.dtype))
    plain = family.removeprefix("shifted_")
    if plain != family:
        x = x * 2.0 - 1.0
    degree = op.Where(op.Less(degree, op.const(0.0, x.dtype)), op.Ceil(degree), op.Floor(degree))
    constant, slope = _RECURRENCES[plain]

    def step(
        op: Builder, at: Value, states: Sequence[Any], scanned: Sequence[Any], captured: Sequence[Any]
    ) -> tuple[None, list[Value], list[Value]]:
        (now, before), (x, degree) = states, captured
        k = op.Cast(at, to=x.dtype) + 1.0
        going = op.Less(k, degree)
        return None, [op.Where(going, _next(plain, x, k, now, before), now), op.Where(going, now, before)], []

    unit = _expanded(op, op.const(1.0, x.dtype), x)
    steps = op.Max(op.ReduceMax(degree, keepdims=0), op.const(1.0, x.dtype)) - 1.0
    trip, states = op.Cast(steps, to=ir.DataType.INT64), [x * slope + constant, unit]
    (value, _), _ = repeat(op, step, trip=trip, carried=states, captured=[x, degree])
    value = op.Where(op.Equal(degree, op.const(0.0, x.dtype)), unit, value)
    return op.Where(op.Less(degree, op.const(0.0, x.dtype)), op.const(0.0, x.dtype), value)


_DIVISIONS = {8: 12, 16: 24, 32: 47, 64: 93}
"""Of Euclid's algorithm for integers of so many bits: the most take neighbours of Fibonacci's numbers."""


@composite("Gcd", infer=_broadcast)
def gcd(op: Builder, a: Value, b: Value) -> Value:
    """The greatest common divisor, by Euclid's algorithm."""
    a, b = _both(op, a, b)
    wide = ir.DataType.INT64
    unit, nothing = op.const(np.array(1, np.int64)), op.const(np.array(0, np.int64))

    def division(
        op: Builder, at: Value, states: Sequence[Any], scanned: Sequence[Any], captured: Sequence[Any]
    ) -> tuple[None, list[Value], list[Value]]:
        a, b = states
        done = op.Equal(b, nothing)
        rest = op.Mod(a, op.Where(done, unit, b))
        return None, [op.Where(done, a, b), op.Where(done, b, rest)], []

    states = [op.Abs(op.Cast(a, to=wide)), op.Abs(op.Cast(b, to=wide))]
    (divisor, _), _ = repeat(op, division, trip=_DIVISIONS[a.dtype.bitwidth], carried=states)
    return op.Cast(divisor, to=a.dtype)
