"""Functions of mathematical physics that ONNX lacks."""

from __future__ import annotations

import math
from collections.abc import Callable

import onnx_ir as ir
import torch

from ontrain.capture.aten.activation import log1p
from ontrain.capture.aten.precision import in_single
from ontrain.capture.aten.registry import Handler, aten
from ontrain.capture.context import AtenBuilder, Scalar
from ontrain.operators import Value

__all__ = ["xlogy"]


def _named(composite: str) -> Handler:
    """The translation to a composite of the operands in the result's dtype."""

    def translate(op: AtenBuilder, *operands: Value) -> Value:
        return op.composite(composite, *(op.cast(x, op.dtype) for x in operands))

    return translate


def _translated(**names: str) -> None:
    """Translate ATen's functions, whose names spaces part, to one composite each."""
    for composite, operators in names.items():
        aten(*operators.split())(_named(composite))


_translated(
    AiryAi="special_airy_ai", BesselI0="i0 special_i0 special_modified_bessel_i0", BesselI0e="special_i0e",
    BesselI1="special_i1 special_modified_bessel_i1", BesselI1e="special_i1e", BesselJ0="special_bessel_j0",
    BesselJ1="special_bessel_j1", BesselK0="special_modified_bessel_k0", BesselK0e="special_scaled_modified_bessel_k0",
    BesselK1="special_modified_bessel_k1", BesselK1e="special_scaled_modified_bessel_k1", BesselY0="special_bessel_y0",
    BesselY1="special_bessel_y1", Digamma="digamma", Erfcx="special_erfcx", Erfinv="erfinv",
    GammaP="igamma special_gammainc", GammaQ="igammac special_gammaincc", LogGamma="lgamma", Ndtri="special_ndtri",
    Zeta="special_zeta", Gcd="gcd",
)  # fmt: skip


def _polynomial(family: str) -> Handler:
    def translate(op: AtenBuilder, x: Value, degree: Value) -> Value:
        x, degree = op.cast(x, op.dtype), op.cast(degree, op.dtype)
        return op.composite("OrthogonalPolynomial", x, degree, family=family)

    return translate


for _family in (
    *(f"{shifted}chebyshev_polynomial_{kind}" for shifted in ("", "shifted_") for kind in "tuvw"),
    "hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p",
):  # fmt: skip
    aten(f"special_{_family}")(_polynomial(_family))


@aten("polygamma", "special_polygamma")
@in_single
def polygamma(op: AtenBuilder, order: int, x: Value) -> Value:
    """ψ of the order n: (−1)^(n + 1) n! ζ(n + 1, x), but digamma where n is zero."""
    x = op.cast(x, op.dtype)
    if order == 0:
        return op.composite("Digamma", x)
    scale = (-1.0) ** (order + 1) * math.factorial(order)
    return op.composite("Zeta", op.cast(order + 1.0, op.dtype), x) * op.cast(scale, op.dtype)


@aten("special_spherical_bessel_j0")
@in_single
def spherical_bessel_j0(op: AtenBuilder, x: Value) -> Value:
    """sin x / x, and its series up to one half."""
    x = op.cast(x, op.dtype)
    near = op.LessOrEqual(op.Abs(x), op.cast(0.5, op.dtype))
    small, large = op.Where(near, x, op.cast(0.0, op.dtype)), op.Where(near, op.cast(1.0, op.dtype), x)
    square, series = small * small, op.cast(0.0, op.dtype)
    for k in range(7, -1, -1):
        series = series * square + op.cast((-1) ** k / math.factorial(2 * k + 1), op.dtype)
    wave = op.Where(op.IsInf(large), op.cast(0.0, op.dtype), op.Sin(large) / large)
    return op.Where(near, series, wave)


@aten("sinc", "special_sinc")
@in_single
def sinc(op: AtenBuilder, x: Value) -> Value:
    """sin πx / πx, which is 1 and has no slope where x is 0."""
    x, one = op.cast(x, op.dtype), op.cast(1.0, op.dtype)
    middle, angle = op.Equal(x, op.cast(0.0, op.dtype)), x * op.cast(math.pi, op.dtype)
    angle = op.Where(middle, one, angle)
    return op.Where(middle, one, op.Sin(angle) / angle)


@aten("logit", "special_logit")
@in_single
def logit(op: AtenBuilder, x: Value, eps: float | None = None) -> Value:
    """log(x / (1 - x)); with eps of x no nearer to 0 and 1, where it has no slope beyond."""
    x = op.cast(x, op.dtype)
    x = x if eps is None else op.Clip(x, op.cast(eps, op.dtype), op.cast(1 - eps, op.dtype))
    return op.Log(x / (op.cast(1.0, op.dtype) - x))


@aten("xlogy", "special_xlogy")
@in_single
def xlogy(op: AtenBuilder, x: Value | Scalar, y: Value | Scalar) -> Value:
    """x · log y."""
    return _by_logarithm(op, x, y, 0.0, lambda y: op.Log(y))


@aten("special_xlog1py")
@in_single
def xlog1py(op: AtenBuilder, x: Value | Scalar, y: Value | Scalar) -> Value:
    """x · log(1 + y)."""
    return _by_logarithm(op, x, y, -1.0, lambda y: log1p(op, y))


def _by_logarithm(
    op: AtenBuilder, a: Value | Scalar, b: Value | Scalar, pole: float, logarithm: Callable[[Value], Value]
) -> Value:
    """x times a logarithm of y, 0 for an x of 0 also where the logarithm is infinite or none.

    A finite logarithm is the derivative by x, for an x of 0, too.
    """
    x, y, zero = op.cast(a, op.dtype), op.cast(b, op.dtype), op.cast(0.0, op.dtype)
    bad = op.Or(op.LessOrEqual(y, op.cast(pole, op.dtype)), op.Equal(y, op.cast(math.inf, op.dtype)))
    nothing = op.And(op.Equal(x, zero), bad)
    return op.Where(nothing, zero, x * logarithm(op.Where(nothing, op.cast(1.0, op.dtype), y)))


@aten("special_log_ndtr")
@in_single
def log_ndtr(op: AtenBuilder, x: Value) -> Value:
    """log Φ(x) by the scaled error function of each side."""
    x = op.cast(x, op.dtype)
    low, edge = op.Less(x, op.cast(-1.0, op.dtype)), op.cast(-1.0, op.dtype)
    below, above = op.Where(low, x, edge), op.Where(low, edge, x)
    root, half = op.cast(math.sqrt(0.5), op.dtype), op.cast(0.5, op.dtype)
    tail = op.Log(op.composite("Erfcx", -below * root) * half) - below * below * half
    rest = op.composite("Erfcx", above * root) * op.Exp(-above * above * half) * half
    return op.Where(low, tail, log1p(op, -rest))


@aten("lcm")
def lcm(op: AtenBuilder, a: Value, b: Value) -> Value:
    """|a b| over the greatest common divisor, zero where that is zero."""
    a, b = op.cast(a, op.dtype), op.cast(b, op.dtype)
    divisor = op.composite("Gcd", a, b)
    return op.Abs(op.Div(a, op.Max(divisor, op.cast(1, op.dtype))) * b)


@aten("frexp")
def frexp(op: AtenBuilder, x: Value) -> tuple[Value, Value]:
    """x as a mantissa from one half up to one, with x's sign, times a power of two."""
    size = op.composite("Detach", op.Abs(x))
    one, half, zero = (op.cast(value, x.dtype) for value in (1.0, 0.5, 0.0))
    special = op.Or(op.Equal(size, zero), op.Or(op.IsInf(size), op.IsNaN(size)))
    known = op.Where(special, half, size)
    power = op.Floor(op.Log(known) * op.cast(1 / math.log(2), x.dtype)) + one
    # A logarithm is rounded: beside a power of two it may be one off.
    scaled = known / _two_to(op, power)
    power = power + op.cast(op.GreaterOrEqual(scaled, one), x.dtype) - op.cast(op.Less(scaled, half), x.dtype)
    return x / op.Where(special, one, _two_to(op, power)), op.cast(op.Where(special, zero, power), ir.DataType.INT32)


def _two_to(op: AtenBuilder, power: Value) -> Value:
    return op.Pow(op.cast(2.0, power.dtype), power)


@aten("nextafter")
def nextafter(op: AtenBuilder, x: Value, other: Value) -> Value:
    """The next number in the direction of another, by arithmetic that rounds to the nearest.

    Source: Rump, Zimmermann, Boldo and Melquiond, Computing predecessor and successor in rounding to nearest, 2009.
    """
    kind = torch.finfo(op.val.dtype)
    x, other = op.cast(x, op.dtype), op.cast(other, op.dtype)
    size, smallest = op.Abs(x), op.cast(kind.tiny * kind.eps, op.dtype)
    half = op.cast(kind.eps / 2 * (1 + kind.eps), op.dtype)
    up, scale = op.Greater(other, x), op.cast(2.0 / kind.eps, op.dtype)
    direction = op.Where(up, op.cast(1.0, op.dtype), op.cast(-1.0, op.dtype))
    of_great = x + direction * (half * size)
    of_small = (x * scale + direction * (half * (size * scale))) / scale
    of_smallest = x + direction * smallest
    is_great = op.Greater(size, op.cast(kind.tiny / kind.eps, op.dtype))
    is_small = op.GreaterOrEqual(size, op.cast(2 * kind.tiny, op.dtype))
    y = op.Where(is_great, of_great, op.Where(is_small, of_small, of_smallest))
    inwards = op.And(op.IsInf(x), op.Not(op.Equal(x, other)))
    y = op.Where(inwards, op.Sign(x) * op.cast(kind.max, op.dtype), y)
    y = op.Where(op.Equal(x, other), other, y)
    return op.Where(op.Or(op.IsNaN(x), op.IsNaN(other)), op.cast(float("nan"), op.dtype), y)
