"""Elementwise arithmetic. Operands broadcast; the driver sums an adjoint back to its operand's shape."""

from __future__ import annotations

import math
from typing import Any

import onnx_ir as ir

from ontrain.autodiff.registry import Op, elementwise, gradient, zero_gradient

__all__: list[str] = []

zero_gradient("Sign", "Floor", "Ceil", "Round", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
zero_gradient("And", "Or", "Not", "Xor", "IsNaN", "IsInf")
zero_gradient(
    "QuantizeLinear", "QLinearConv", "QLinearMatMul",
    reason="it rounds to whole numbers; train through a rounding that passes its gradient straight on",
)  # fmt: skip
zero_gradient("ConvInteger", "MatMulInteger", "NonMaxSuppression", reason="its results are whole numbers")
zero_gradient("BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor")

elementwise("Sqrt", lambda op, x, y: 0.5 / y)
elementwise("Exp", lambda op, x, y: y)
elementwise("Log", lambda op, x, y: 1 / x)
elementwise("Reciprocal", lambda op, x, y: -(y * y))
elementwise("Erf", lambda op, x, y: op.Exp(-(x * x)) * (2 / math.sqrt(math.pi)))
elementwise("Sin", lambda op, x, y: op.Cos(x))
elementwise("Cos", lambda op, x, y: -op.Sin(x))
elementwise("Tan", lambda op, x, y: 1 + y * y)
elementwise("Sinh", lambda op, x, y: op.Cosh(x))
elementwise("Cosh", lambda op, x, y: op.Sinh(x))
elementwise("Asin", lambda op, x, y: 1 / op.Sqrt(1 - x * x))
elementwise("Acos", lambda op, x, y: -1 / op.Sqrt(1 - x * x))
elementwise("Atan", lambda op, x, y: 1 / (1 + x * x))
elementwise("Asinh", lambda op, x, y: 1 / op.Sqrt(x * x + 1))
elementwise("Acosh", lambda op, x, y: 1 / op.Sqrt(x * x - 1))
elementwise("Atanh", lambda op, x, y: 1 / (1 - x * x))
elementwise("Abs", lambda op, x, y: op.Sign(x))


@gradient("Neg")
def neg(op: Op, dy: ir.Value, x: ir.Value) -> Any:
    """−dy."""
    return -dy


@gradient("Add")
def add(op: Op, dy: ir.Value, a: ir.Value, b: ir.Value) -> Any:
    """dy to both."""
    return dy, dy


@gradient("Sub")
def sub(op: Op, dy: ir.Value, a: ir.Value, b: ir.Value) -> Any:
    """dy and −dy."""
    return dy, -dy if op.wanted[1] else None


@gradient("Mul")
def mul(op: Op, dy: ir.Value, a: ir.Value, b: ir.Value) -> Any:
    """Each operand gets dy times the other."""
    return dy * b if op.wanted[0] else None, dy * a if op.wanted[1] else None


@gradient("Div")
def div(op: Op, dy: ir.Value, a: ir.Value, b: ir.Value) -> Any:
    """For y = a / b: dy / b and −dy · y / b."""
    da = dy / b
    return da, -(da * op.outputs[0]) if op.wanted[1] else None


@gradient("Pow")
def power(op: Op, dy: ir.Value, a: ir.Value, b: ir.Value) -> Any:
    """For y = aᵇ: dy · b · aᵇ⁻¹ and dy · y · log a. As in torch, b = 0 and a = 0 ≤ b give zero instead of NaN."""
    b_typed = op.Cast(b, to=a.dtype)
    da = dy * _power_by_base(op, a, b_typed) if op.wanted[0] else None
    if not op.wanted[1]:
        return da, None
    flat = op.And(op.Equal(a, 0.0), op.GreaterOrEqual(b_typed, 0.0))
    return da, dy * op.outputs[0] * op.Log(op.Where(flat, 1.0, a))


def _power_by_base(op: Op, a: ir.Value, b: ir.Value) -> Any:
    known = b.const_value.numpy() if b.const_value is not None else None
    if known is not None and (known == 2).all():
        return 2 * a
    slope = b * op.Pow(a, b - 1)
    return slope if known is not None and (known != 0).all() else op.Where(op.Equal(b, 0.0), 0.0, slope)


@gradient("Mod")
def mod(op: Op, dy: ir.Value, a: ir.Value, b: ir.Value, *, fmod: int = 0) -> Any:
    """For y = a − b · trunc(a / b): dy and −dy · trunc(a / b)."""
    return dy, -dy * op.Round((a - op.outputs[0]) / b) if op.wanted[1] else None


@gradient("Sum")
def variadic_sum(op: Op, dy: ir.Value, *xs: ir.Value) -> Any:
    """dy to each."""
    return [dy] * len(xs)


@gradient("Mean")
def variadic_mean(op: Op, dy: ir.Value, *xs: ir.Value) -> Any:
    """dy / n to each of n."""
    return [dy / len(xs)] * len(xs)


@gradient("Max", "Min")
def extremum(op: Op, dy: ir.Value, *xs: ir.Value) -> Any:
    """dy to the operands that attain the extremum, in equal shares (torch.maximum)."""
    if len(xs) == 1:
        return dy
    hits = [op.Cast(op.Equal(x, op.outputs[0]), to=dy.dtype) for x in xs]
    share = dy / op.Sum(*hits)
    return [share * hit for hit in hits]


@gradient("Clip")
def clip(op: Op, dy: ir.Value, x: ir.Value, low: ir.Value | None = None, high: ir.Value | None = None) -> Any:
    """dy to x where low ≤ x ≤ high, to low below it and to high above it (torch.clamp)."""
    below = op.Less(x, low) if low is not None else None
    above = op.Greater(x, high) if high is not None else None
    outside = op.Or(below, above) if below is not None and above is not None else below or above
    dx = dy if outside is None else op.Where(outside, 0.0, dy)
    if above is not None and below is not None:
        below = op.And(below, op.Not(op.Less(high, low)))  # where the bounds cross, the upper one wins
        above = op.Or(above, op.Less(high, low))
    dlow = op.Where(below, dy, 0.0) if len(op.wanted) > 1 and op.wanted[1] else None
    dhigh = op.Where(above, dy, 0.0) if len(op.wanted) > 2 and op.wanted[2] else None
    return dx, dlow, dhigh


@gradient("Where")
def where(op: Op, dy: ir.Value, condition: ir.Value, a: ir.Value, b: ir.Value) -> Any:
    """dy to the operand that was chosen."""
    da = op.Where(condition, dy, 0.0) if op.wanted[1] else None
    return None, da, op.Where(condition, 0.0, dy) if op.wanted[2] else None
