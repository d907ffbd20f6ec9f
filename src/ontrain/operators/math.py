"""Elementwise arithmetic. Operands broadcast; the driver sums an adjoint back to its operand's shape."""

from __future__ import annotations

import math

import numpy as np

from ontrain.operators.division import divided
from ontrain.operators.emit import Value
from ontrain.operators.gradients import Adjoints, Op, elementwise, gradient
from ontrain.operators.halves import as_before, unrounded
from ontrain.operators.record import FLAT, POINTWISE, Precision, Stock, define

__all__: list[str] = []

erf = np.vectorize(math.erf, otypes=[np.float64])
define("Ceil", FLAT, stock=Stock.KERNEL)
define("Floor", FLAT, stock=Stock.KERNEL)
define("Round", FLAT, stock=Stock.COMPARED)
define("Sign", FLAT, stock=Stock.COMPARED)
define("Sqrt", POINTWISE, singular=True, function=np.sqrt, stock=Stock.KERNEL)
elementwise("Sqrt", lambda op, x, y: 0.5 / y)
define("Exp", POINTWISE, singular=True, function=np.exp, stock=Stock.KERNEL)
elementwise("Exp", lambda op, x, y: y)
define("Log", POINTWISE, singular=True, stock=Stock.KERNEL)
elementwise("Log", lambda op, x, y: 1 / x)
define("Reciprocal", POINTWISE, singular=True, stock=Stock.KERNEL)
elementwise("Reciprocal", lambda op, x, y: -(y * y))
define("Erf", POINTWISE, function=erf, marks_gelu=True, stock=Stock.KERNEL)


def _bell(op: Op, x: Value, y: Value) -> Value:
    """exp(−x²)·2/√π, rounded once where x is a half."""
    wide = unrounded(op, x)
    return as_before(op, op.Exp(-(wide * wide)) * (2 / math.sqrt(math.pi)), x)


elementwise("Erf", _bell)
define("Sin", POINTWISE, stock=Stock.KERNEL, ahead_from=1 << 16)
elementwise("Sin", lambda op, x, y: op.Cos(x))
define("Cos", POINTWISE, stock=Stock.KERNEL, ahead_from=1 << 16)
elementwise("Cos", lambda op, x, y: -op.Sin(x))
define("Tan", POINTWISE, singular=True, stock=Stock.COMPARED, ahead_from=1 << 11)
elementwise("Tan", lambda op, x, y: 1 + y * y)
define("Sinh", POINTWISE, singular=True, stock=Stock.COMPARED, ahead_from=1 << 11)
elementwise("Sinh", lambda op, x, y: op.Cosh(x))
define("Cosh", POINTWISE, singular=True, stock=Stock.COMPARED, ahead_from=1 << 12)
elementwise("Cosh", lambda op, x, y: op.Sinh(x))
define("Asin", POINTWISE, singular=True, stock=Stock.COMPARED)
elementwise("Asin", lambda op, x, y: 1 / op.Sqrt(1 - x * x))
define("Acos", POINTWISE, singular=True, stock=Stock.COMPARED)
elementwise("Acos", lambda op, x, y: -1 / op.Sqrt(1 - x * x))
define("Atan", POINTWISE, stock=Stock.COMPARED)
elementwise("Atan", lambda op, x, y: 1 / (1 + x * x))
define("Asinh", POINTWISE, stock=Stock.COMPARED)
elementwise("Asinh", lambda op, x, y: 1 / op.Sqrt(x * x + 1))
define("Acosh", POINTWISE, singular=True, stock=Stock.COMPARED)
elementwise("Acosh", lambda op, x, y: 1 / op.Sqrt(x * x - 1))
define("Atanh", POINTWISE, singular=True, stock=Stock.COMPARED, ahead_from=1 << 11)
elementwise("Atanh", lambda op, x, y: 1 / (1 - x * x))
define("Abs", POINTWISE, precision=Precision.FOLLOWS, stock=Stock.KERNEL)
elementwise("Abs", lambda op, x, y: op.Sign(x))


define(
    "Neg", POINTWISE, precision=Precision.FOLLOWS, evaluate=lambda a, x: -x, function=np.negative, stock=Stock.KERNEL
)


@gradient("Neg")
def neg(op: Op, dy: Value, x: Value) -> Adjoints:
    """−dy."""
    return -dy


define(
    "Add", POINTWISE, precision=Precision.FOLLOWS, evaluate=lambda a, x, y: x + y, function=np.add, stock=Stock.KERNEL
)


@gradient("Add")
def add(op: Op, dy: Value, a: Value, b: Value) -> Adjoints:
    """dy to both."""
    return dy, dy


define(
    "Sub",
    POINTWISE,
    precision=Precision.FOLLOWS,
    evaluate=lambda a, x, y: x - y,
    function=np.subtract,
    stock=Stock.KERNEL,
)


@gradient("Sub")
def sub(op: Op, dy: Value, a: Value, b: Value) -> Adjoints:
    """dy and −dy."""
    return dy, -dy if op.wanted[1] else None


define(
    "Mul",
    POINTWISE,
    precision=Precision.FOLLOWS,
    evaluate=lambda a, x, y: x * y,
    function=np.multiply,
    stock=Stock.KERNEL,
)


@gradient("Mul")
def mul(op: Op, dy: Value, a: Value, b: Value) -> Adjoints:
    """Each operand gets dy times the other."""
    return dy * b if op.wanted[0] else None, dy * a if op.wanted[1] else None


define(
    "Div",
    POINTWISE,
    precision=Precision.FOLLOWS,
    evaluate=lambda a, x, y: divided(x, y),
    function=np.divide,
    singular=True,
    stock=Stock.KERNEL,
)


@gradient("Div")
def div(op: Op, dy: Value, a: Value, b: Value) -> Adjoints:
    """For y = a / b: dy / b and −dy · y / b."""
    da = dy / b
    return da, -(da * op.outputs[0]) if op.wanted[1] else None


define("Pow", POINTWISE, singular=True, function=np.power, stock=Stock.KERNEL)


@gradient("Pow")
def power(op: Op, dy: Value, a: Value, b: Value) -> Adjoints:
    """For y = aᵇ: dy · b · aᵇ⁻¹ and dy · y · log a. As in torch, b = 0 and a = 0 ≤ b give zero instead of NaN."""
    b_typed = op.Cast(b, to=a.dtype)
    da = dy * _power_by_base(op, a, b_typed) if op.wanted[0] else None
    if not op.wanted[1]:
        return da, None
    flat = op.And(op.Equal(a, 0.0), op.GreaterOrEqual(b_typed, 0.0))
    return da, dy * op.outputs[0] * op.Log(op.Where(flat, 1.0, a))


def _power_by_base(op: Op, a: Value, b: Value) -> Value:
    known = b.const_value.numpy() if b.const_value is not None else None
    if known is not None and (known == 2).all():
        return 2 * a
    slope = b * op.Pow(a, b - 1)
    return slope if known is not None and (known != 0).all() else op.Where(op.Equal(b, 0.0), 0.0, slope)


define("Mod", POINTWISE, singular=True, stock=Stock.COMPARED, ahead_from=1 << 13)


@gradient("Mod")
def mod(op: Op, dy: Value, a: Value, b: Value, *, fmod: int = 0) -> Adjoints:
    """For y = a − b · trunc(a / b): dy and −dy · trunc(a / b)."""
    return dy, -dy * op.Round((a - op.outputs[0]) / b) if op.wanted[1] else None


define("Sum", POINTWISE, overwrites=(0, 1), precision=Precision.FOLLOWS, stock=Stock.KERNEL)


@gradient("Sum")
def variadic_sum(op: Op, dy: Value, *xs: Value) -> Adjoints:
    """dy to each."""
    return [dy] * len(xs)


define("Mean", POINTWISE, overwrites=(0, 1), stock=Stock.COMPARED)


@gradient("Mean")
def variadic_mean(op: Op, dy: Value, *xs: Value) -> Adjoints:
    """dy / n to each of n."""
    return [dy / len(xs)] * len(xs)


define("Max", POINTWISE, overwrites=(0, 1), precision=Precision.FOLLOWS, stock=Stock.KERNEL)
define("Min", POINTWISE, overwrites=(0, 1), precision=Precision.FOLLOWS, stock=Stock.KERNEL)


@gradient("Max", "Min")
def extremum(op: Op, dy: Value, *xs: Value) -> Adjoints:
    """dy to the operands that attain the extremum, in equal shares (torch.maximum)."""
    if len(xs) == 1:
        return dy
    if len(xs) == 2:
        a, b = xs if op.node.op_type == "Max" else xs[::-1]
        half = op.Where(op.Equal(a, b), 0.5 * dy, dy)  # and all of dy to both beside a NaN
        return op.Where(op.Less(a, b), 0.0, half), op.Where(op.Less(b, a), 0.0, half)
    hits = [op.Cast(op.Equal(x, op.outputs[0]), to=dy.dtype) for x in xs]
    share = dy / op.Sum(*hits)
    return [share * hit for hit in hits]


define("Clip", POINTWISE, precision=Precision.FOLLOWS, weightless=(1, 2), epilogue_of=("Conv",), stock=Stock.KERNEL)


@gradient("Clip")
def clip(op: Op, dy: Value, x: Value, low: Value | None = None, high: Value | None = None) -> Adjoints:
    """dy to x where low ≤ x ≤ high, to low below it and to high above it (torch.clamp); to none for a NaN."""
    below = op.Less(x, low) if low is not None else None
    above = op.Greater(x, high) if high is not None else None
    reached = op.GreaterOrEqual(x, low) if low is not None else None
    within = op.LessOrEqual(x, high) if high is not None else None
    inside = op.And(reached, within) if reached is not None and within is not None else reached or within
    dx = dy if inside is None else op.Where(inside, dy, 0.0)
    if above is not None and below is not None:
        below = op.And(below, op.Not(op.Less(high, low)))  # where the bounds cross, the upper one wins
        above = op.Or(above, op.Less(high, low))
    dlow = op.Where(below, dy, 0.0) if len(op.wanted) > 1 and op.wanted[1] else None
    dhigh = op.Where(above, dy, 0.0) if len(op.wanted) > 2 and op.wanted[2] else None
    return dx, dlow, dhigh


define(
    "Where", POINTWISE, precision=Precision.FOLLOWS, evaluate=lambda a, c, x, y: np.where(c, x, y), stock=Stock.KERNEL
)


@gradient("Where")
def where(op: Op, dy: Value, condition: Value, a: Value, b: Value) -> Adjoints:
    """dy to the operand that was chosen."""
    da = op.Where(condition, dy, 0.0) if op.wanted[1] else None
    return None, da, op.Where(condition, 0.0, dy) if op.wanted[2] else None
