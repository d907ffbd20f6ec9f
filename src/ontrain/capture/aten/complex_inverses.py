"""Inverse functions of complex numbers, by square roots whose parts do not cancel.

Source: Kahan, Branch cuts for complex elementary functions, 1987.
"""

from __future__ import annotations

from ontrain.capture.aten.arithmetic import atan2
from ontrain.capture.aten.complex import Complex, add, conj, div, mul, on_complex
from ontrain.capture.aten.complex_functions import cos, sin, sqrt
from ontrain.capture.context import AtenBuilder
from ontrain.operators import Value

__all__: list[str] = []


def _turned(op: AtenBuilder, x: Complex) -> Complex:
    """i times x."""
    return Complex(op.Neg(x.imag), x.real)


def _turned_back(op: AtenBuilder, x: Complex) -> Complex:
    """−i times x."""
    return Complex(x.imag, op.Neg(x.real))


def _roots(op: AtenBuilder, x: Complex) -> tuple[Complex, Complex]:
    """The roots of 1 − x and of 1 + x."""
    less, more = (add(op, complex(1), x, alpha=sign) for sign in (-1, 1))
    return sqrt(op, less), sqrt(op, more)


@on_complex("tan")
def tan(op: AtenBuilder, x: Complex) -> Complex:
    return div(op, sin(op, x), cos(op, x))


@on_complex("asin")
def asin(op: AtenBuilder, x: Complex) -> Complex:
    less, more = _roots(op, x)
    return Complex(
        atan2(op, x.real, mul(op, less, more).real), op.Asinh(mul(op, conj(op, less), more).imag)
    )  # fmt: skip


@on_complex("acos")
def acos(op: AtenBuilder, x: Complex) -> Complex:
    less, more = _roots(op, x)
    return Complex(_twice(op, less.real, more.real), op.Asinh(mul(op, conj(op, more), less).imag))


def _twice(op: AtenBuilder, y: Value, x: Value) -> Value:
    """Twice the angle of a point."""
    return atan2(op, y, x) * 2


@on_complex("acosh")
def acosh(op: AtenBuilder, x: Complex) -> Complex:
    less, more = sqrt(op, add(op, x, complex(-1))), sqrt(op, add(op, x, complex(1)))
    return Complex(op.Asinh(mul(op, conj(op, less), more).real), _twice(op, less.imag, more.real))


@on_complex("asinh")
def asinh(op: AtenBuilder, x: Complex) -> Complex:
    return _turned_back(op, asin(op, _turned(op, x)))


@on_complex("atanh")
def atanh(op: AtenBuilder, x: Complex) -> Complex:
    """Half of the logarithm of (1 + x) / (1 − x)."""
    square = x.imag * x.imag
    away = (1 - x.real) * (1 - x.real) + square
    size = op.Log(1 + 4 * x.real / away) / 4
    return Complex(size, atan2(op, x.imag + x.imag, (1 - x.real) * (1 + x.real) - square) / 2)


@on_complex("atan")
def atan(op: AtenBuilder, x: Complex) -> Complex:
    return _turned_back(op, atanh(op, _turned(op, x)))
