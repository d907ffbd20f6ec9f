"""Functions of mathematical physics, element by element."""

from __future__ import annotations

import math

from ontrain.operators.emit import Value
from ontrain.operators.gradients import Adjoints, Op, elementwise, gradient
from ontrain.operators.record import DOMAIN, ELEMENTWISE, POINTWISE, define

__all__: list[str] = []

for _name in (
    "AiryAi", "BesselI0", "BesselI0e", "BesselI1", "BesselI1e", "BesselJ0", "BesselJ1", "BesselK0", "BesselK0e",
    "BesselK1", "BesselK1e", "BesselY0", "BesselY1", "Digamma", "Erfcx", "Erfinv", "GammaP", "GammaQ", "LogGamma",
    "Ndtri",
):  # fmt: skip
    define(_name, POINTWISE, domain=DOMAIN)
define("Zeta", ELEMENTWISE, domain=DOMAIN)
define("Gcd", POINTWISE, domain=DOMAIN, zero_gradient="its result is a whole number")
define("OrthogonalPolynomial", ELEMENTWISE, domain=DOMAIN, overwrites=(0,))


def _call(op: Op, name: str, x: Value) -> Value:
    return op.composite(name, x)


def _over_x(op: Op, y: Value, x: Value) -> Value:
    """y / x, and ½ where x is zero, the limit of I₁(x)/x and J₁(x)/x."""
    zero = op.Equal(x, op.const(0.0, x.dtype))
    return op.Where(zero, op.const(0.5, x.dtype), y / op.Where(zero, op.const(1.0, x.dtype), x))


elementwise("BesselI0", lambda op, x, y: _call(op, "BesselI1", x), domain=DOMAIN)
elementwise("BesselI0e", lambda op, x, y: _call(op, "BesselI1e", x) - op.Sign(x) * y, domain=DOMAIN)
elementwise("BesselI1", lambda op, x, y: _call(op, "BesselI0", x) - _over_x(op, y, x), domain=DOMAIN)
elementwise(
    "BesselI1e",
    lambda op, x, y: _call(op, "BesselI0e", x) - op.Sign(x) * y - _over_x(op, y, x),
    domain=DOMAIN,
)
elementwise("BesselJ0", lambda op, x, y: -_call(op, "BesselJ1", x), domain=DOMAIN)
elementwise("BesselJ1", lambda op, x, y: _call(op, "BesselJ0", x) - _over_x(op, y, x), domain=DOMAIN)
elementwise("BesselY0", lambda op, x, y: -_call(op, "BesselY1", x), domain=DOMAIN)
elementwise("BesselY1", lambda op, x, y: _call(op, "BesselY0", x) - y / x, domain=DOMAIN)
elementwise("BesselK0", lambda op, x, y: -_call(op, "BesselK1", x), domain=DOMAIN)
elementwise("BesselK0e", lambda op, x, y: y - _call(op, "BesselK1e", x), domain=DOMAIN)
elementwise("BesselK1", lambda op, x, y: -_call(op, "BesselK0", x) - y / x, domain=DOMAIN)
elementwise("BesselK1e", lambda op, x, y: y - _call(op, "BesselK0e", x) - y / x, domain=DOMAIN)
elementwise("Digamma", lambda op, x, y: op.composite("Zeta", op.const(2.0, x.dtype), x), domain=DOMAIN)
elementwise("Erfcx", lambda op, x, y: x * y * 2.0 - 2 / math.sqrt(math.pi), domain=DOMAIN)
elementwise("Erfinv", lambda op, x, y: op.Exp(y * y) * (math.sqrt(math.pi) / 2), domain=DOMAIN)
elementwise("LogGamma", lambda op, x, y: _call(op, "Digamma", x), domain=DOMAIN)
elementwise("Ndtri", lambda op, x, y: op.Exp(y * y * 0.5) * math.sqrt(2 * math.pi), domain=DOMAIN)


@gradient("Zeta", domain=DOMAIN)
def zeta(op: Op, dy: Value, s: Value, q: Value) -> Adjoints:
    """−s ζ(s + 1, q) by q."""
    if op.wanted[0]:
        raise op.refused("the derivative of zeta by its exponent has no series here", "detach the exponent")
    return None, -dy * s * op.composite("Zeta", s + 1.0, q)


def _density(op: Op, a: Value, x: Value) -> Value:
    """x^(a − 1) e^(−x) / Γ(a)."""
    return op.Exp((a - 1.0) * op.Log(x) - x - op.composite("LogGamma", a))


@gradient("GammaP", "GammaQ", domain=DOMAIN)
def incomplete_gamma(op: Op, dy: Value, a: Value, x: Value) -> Adjoints:
    """By x plus or minus the density of the gamma distribution."""
    if op.wanted[0]:
        raise op.refused("the derivative of the incomplete gamma function by its first argument has no series here",
                         "detach the first argument")  # fmt: skip
    slope = dy * _density(op, a, x)
    return None, slope if op.node.op_type == "GammaP" else -slope
