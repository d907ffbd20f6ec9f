"""Functions of mathematical physics that ONNX lacks, by series whose truncation is below double precision."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ontrain.capture.aten.registry import aten
from ontrain.capture.context import AtenBuilder

__all__: list[str] = []

# Lanczos' series for g = 7 (Godfrey's coefficients, numericana.com/answer/info/godfrey.htm).
_LANCZOS = (
    0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059,
    12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7,
)  # fmt: skip


def _numbers(op: AtenBuilder, x: Any) -> Callable[[float], Any]:
    """A function that makes constants of x's dtype."""
    return lambda value: op.cast(value, x.dtype)


def _halves(op: AtenBuilder, x: Any) -> tuple[Any, Any]:
    """Whether x lies where the reflection formula is needed, and x or 1 - x, whichever is at least one half."""
    reflected = op.Less(x, op.cast(0.5, x.dtype))
    return reflected, op.Where(reflected, op.cast(1, x.dtype) - x, x)


@aten("lgamma")
def lgamma(op: AtenBuilder, x: Any) -> Any:
    """log |Γ(x)|: Lanczos for x ≥ 1/2, else log(π / |sin πx|) - lgamma(1 - x)."""
    x = op.cast(x, op.dtype)
    number = _numbers(op, x)
    reflected, high = _halves(op, x)
    z = high - number(1)
    series = number(_LANCZOS[0])
    for i, coefficient in enumerate(_LANCZOS[1:], 1):
        series = series + number(coefficient) / (z + number(i))
    t = z + number(7.5)
    above = number(0.5 * math.log(2 * math.pi)) + (z + number(0.5)) * op.Log(t) - t + op.Log(series)
    sine = op.Abs(op.Sin(number(math.pi) * op.Where(reflected, x - op.Floor(x), number(0.5))))
    return op.Where(reflected, op.Log(number(math.pi) / sine) - above, above)


@aten("digamma")
def digamma(op: AtenBuilder, x: Any) -> Any:
    """ψ(x): raised by ψ(x) = ψ(x + 1) - 1/x to where the asymptotic series holds; reflected below 1/2."""
    x = op.cast(x, op.dtype)
    number = _numbers(op, x)
    reflected, high = _halves(op, x)
    steps = number(0)
    for i in range(8):
        steps = steps + number(1) / (high + number(i))
    z = high + number(8)
    square = number(1) / (z * z)
    # Bernoulli numbers B_2k / 2k, from the last to the first.
    tail = number(0)
    for coefficient in (1 / 12, -691 / 32760, 1 / 132, -1 / 240, 1 / 252, -1 / 120, 1 / 12):
        tail = (tail + number(coefficient)) * square
    above = op.Log(z) - number(0.5) / z - tail - steps
    angle = number(math.pi) * op.Where(reflected, x - op.Floor(x), number(0.25))
    below = above - number(math.pi) / op.Tan(angle)
    pole = op.And(reflected, op.Equal(x, op.Floor(x)))
    return op.Where(pole, number(math.nan), op.Where(reflected, below, above))


@aten("erfinv")
def erfinv(op: AtenBuilder, x: Any) -> Any:
    """Winitzki's approximation, then three of Newton's steps; the gradient is that of the last."""
    x = op.cast(x, op.dtype)
    number = _numbers(op, x)
    a = 0.147
    edge = op.GreaterOrEqual(op.Abs(x), number(1))
    inner = op.Where(edge, number(0), x)
    fixed = op.composite("Detach", inner)
    log = op.Log(number(1) - fixed * fixed)
    half = number(2 / (math.pi * a)) + log * number(0.5)
    y = op.Sign(fixed) * op.Sqrt(op.Sqrt(half * half - log * number(1 / a)) - half)
    for step in range(3):
        error = op.Erf(y) - (inner if step == 2 else fixed)
        y = y - error * op.Exp(y * y) * number(math.sqrt(math.pi) / 2)
    low = op.Where(op.Equal(x, number(-1)), number(-math.inf), number(math.nan))
    return op.Where(edge, op.Where(op.Equal(x, number(1)), number(math.inf), low), y)
