"""Operators on complex tensors: products of all kinds, writes of one into another, and elementary functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

from ontrain.capture.aten.arithmetic import atan2
from ontrain.capture.aten.complex import (
    Complex,
    Term,
    absolute,
    add,
    as_complex,
    div,
    exp,
    full_shape,
    joined_product,
    mul,
    on_complex,
    real_translation,
)
from ontrain.capture.aten.creation import filled
from ontrain.capture.context import AtenBuilder
from ontrain.operators import Value, subscripts

__all__ = ["cos", "sgn", "sin", "sqrt"]


def _multilinear(op: AtenBuilder, factors: Sequence[Term], times: Callable[..., Value]) -> Complex:
    """Multiply out: the real operator on each choice of real and imaginary parts, times a power of i."""
    sums: list[Value | None] = [None, None]
    choices = [(0, 1) if isinstance(factor, Complex) else (0,) for factor in factors]
    for choice in product(*choices):
        term = times(*(_chosen(op, factor, which) for factor, which in zip(factors, choice, strict=True)))
        power = sum(choice)
        term = op.Neg(term) if power % 4 >= 2 else term
        known = sums[power % 2]
        sums[power % 2] = term if known is None else known + term
    real, imag = sums
    assert real is not None and imag is not None
    return Complex(real, imag)


def _chosen(op: AtenBuilder, factor: Any, which: int) -> Value:
    part = (factor.imag if which else factor.real) if isinstance(factor, Complex) else factor
    return op.cast(part, op.dtype)


@on_complex("einsum")
def einsum(op: AtenBuilder, equation: str, operands: Sequence[Term], *, path: object = None) -> Complex:
    first, second = operands if len(operands) == 2 else (None, None)
    if isinstance(first, Complex) and isinstance(second, Complex):
        terms, result = subscripts(equation, [len(shape) for shape in op.listed_shapes(1)])
        if all(len(set(term)) == len(term) for term in terms):
            y = joined_product(op, first, second, f"{','.join(terms)}->{result}")
            if y is not None:
                return y
    return _multilinear(op, operands, lambda *factors: op.Einsum(*factors, equation=equation))


@on_complex("mv", "dot", "outer", "ger", "inner")
def contraction(op: AtenBuilder, a: Term, b: Term) -> Complex:
    real = real_translation(op)
    return _multilinear(op, (a, b), lambda x, y: real(op, x, y))


@on_complex("linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
            "convolution", "_convolution")  # fmt: skip
def affine(op: AtenBuilder, x: Term, weight: Term, bias: Term | None = None, *settings: Any, **named: Any) -> Complex:
    real = real_translation(op)
    y = _multilinear(op, (x, weight), lambda a, b: real(op, a, b, None, *settings, **named))
    if bias is None:
        return y
    shift = as_complex(op, bias)
    if op.argument(0).ndim > 2 and "linear" not in str(op.node.target):
        axes = list(range(1, op.argument(1).ndim - 1))
        shift = Complex(op.Unsqueeze(shift.real, axes), op.Unsqueeze(shift.imag, axes))
    return Complex(y.real + shift.real, y.imag + shift.imag)


@on_complex("addmm", "baddbmm", "addmv")
def affine_product(op: AtenBuilder, c: Term, a: Term, b: Term, *, beta: float = 1, alpha: float = 1) -> Complex:
    y = _multilinear(op, (a, b), op.MatMul)
    return add(op, mul(op, c, complex(beta)), mul(op, y, complex(alpha)))


@on_complex("addcmul")
def addcmul(op: AtenBuilder, x: Term, a: Term, b: Term, *, value: complex = 1) -> Complex:
    return add(op, x, mul(op, mul(op, as_complex(op, a), complex(value)), as_complex(op, b)))


@on_complex("addcdiv")
def addcdiv(op: AtenBuilder, x: Term, a: Term, b: Term, *, value: complex = 1) -> Complex:
    return add(op, x, mul(op, div(op, as_complex(op, a), as_complex(op, b)), complex(value)))


@on_complex("lerp")
def lerp(op: AtenBuilder, x: Term, end: Term, weight: Term) -> Complex:
    x = as_complex(op, x)
    return add(op, x, mul(op, as_complex(op, weight), add(op, end, x, alpha=-1)))


@on_complex("square")
def square(op: AtenBuilder, x: Complex) -> Complex:
    return mul(op, x, x)


@on_complex("copy", "copy_")
def copy(op: AtenBuilder, x: Term, new: Term, *_: object) -> Complex:
    same = isinstance(new, Complex) and op.input_shape(1) == op.shape
    return as_complex(op, new) if same else full_shape(op, as_complex(op, new))


@on_complex("where")
def where(op: AtenBuilder, condition: Value, a: Term, b: Term) -> Complex:
    a, b = as_complex(op, a), as_complex(op, b)
    return Complex(op.Where(condition, a.real, b.real), op.Where(condition, a.imag, b.imag))


@on_complex("masked_fill")
def masked_fill(op: AtenBuilder, x: Term, mask: Value, value: Term) -> Complex:
    return full_shape(op, where(op, mask, value, x))


@on_complex("full", "full_like", "new_full", "fill", "ones", "ones_like", "new_ones", "zeros", "new_zeros", "zero",
            "empty", "empty_like", "new_empty", "scalar_tensor")  # fmt: skip
def full(op: AtenBuilder, *arguments: Any, **named: Any) -> Complex:
    name = str(op.node.target).split(".")[1]
    number = 1 if "ones" in name else 0
    if any(part in name for part in ("full", "fill", "scalar")):
        number = named["fill_value"] if "fill_value" in named else arguments[-1]
    value = as_complex(op, number)
    return Complex(filled(op, value.real), filled(op, value.imag))


@on_complex("eye")
def eye(op: AtenBuilder, *arguments: Any, **named: Any) -> Complex:
    return Complex(real_translation(op)(op, *arguments, **named), filled(op, 0))


@on_complex("eq")
def equal(op: AtenBuilder, a: Term, b: Term) -> Value:
    operand = next(term for term in (a, b) if isinstance(term, Complex))
    dtype = operand.real.dtype
    a, b = as_complex(op, a, dtype), as_complex(op, b, dtype)
    return op.And(op.Equal(a.real, b.real), op.Equal(a.imag, b.imag))


@on_complex("ne")
def unequal(op: AtenBuilder, a: Term, b: Term) -> Value:
    return op.Not(equal(op, a, b))


@on_complex("log")
def log(op: AtenBuilder, x: Complex) -> Complex:
    return Complex(op.Log(absolute(op, x)), atan2(op, x.imag, x.real))


@on_complex("sqrt")
def sqrt(op: AtenBuilder, x: Complex) -> Complex:
    """The root with a real part that is not negative, from the part that does not cancel."""
    half, zero = op.cast(0.5, op.dtype), op.cast(0, op.dtype)
    larger = op.Sqrt((absolute(op, x) + op.Abs(x.real)) * half)
    smaller = x.imag / (op.Where(op.Equal(larger, zero), op.cast(1, op.dtype), larger) + larger)
    right = op.GreaterOrEqual(x.real, zero)
    sign = op.Where(op.Less(x.imag, zero), op.cast(-1, op.dtype), op.cast(1, op.dtype))
    return Complex(op.Where(right, larger, op.Abs(smaller)), op.Where(right, smaller, sign * larger))


@on_complex("log2", "log10")
def log_to_a_base(op: AtenBuilder, x: Complex) -> Complex:
    y, scale = log(op, x), op.cast(1 / math.log(2 if "log2" in str(op.node.target) else 10), op.dtype)
    return Complex(y.real * scale, y.imag * scale)


@on_complex("pow")
def power(op: AtenBuilder, a: Term, b: Term) -> Complex:
    if isinstance(b, int | float) and b in (1, 2, 3, 4):
        base = as_complex(op, a)
        y = base
        for _ in range(int(b) - 1):
            y = mul(op, y, base)
        return y
    if isinstance(a, int | float) and a > 0:
        return exp(op, mul(op, as_complex(op, b), complex(math.log(a))))
    return exp(op, mul(op, log(op, as_complex(op, a)), as_complex(op, b)))


@on_complex("sin")
def sin(op: AtenBuilder, x: Complex) -> Complex:
    """Return the sine, by functions of both parts."""
    return Complex(op.Sin(x.real) * op.Cosh(x.imag), op.Cos(x.real) * op.Sinh(x.imag))


@on_complex("cos")
def cos(op: AtenBuilder, x: Complex) -> Complex:
    """Return the cosine, by functions of both parts."""
    return Complex(op.Cos(x.real) * op.Cosh(x.imag), op.Neg(op.Sin(x.real) * op.Sinh(x.imag)))


@on_complex("sinh")
def sinh(op: AtenBuilder, x: Complex) -> Complex:
    return Complex(op.Sinh(x.real) * op.Cos(x.imag), op.Cosh(x.real) * op.Sin(x.imag))


@on_complex("cosh")
def cosh(op: AtenBuilder, x: Complex) -> Complex:
    return Complex(op.Cosh(x.real) * op.Cos(x.imag), op.Sinh(x.real) * op.Sin(x.imag))


@on_complex("tanh")
def tanh(op: AtenBuilder, x: Complex) -> Complex:
    """(tanh a + i tan b) / (1 + i tanh a tan b): finite for large real parts."""
    a, b = op.Tanh(x.real), op.Tan(x.imag)
    return div(op, Complex(a, b), Complex(filled(op, 1), a * b))


@on_complex("sigmoid")
def sigmoid(op: AtenBuilder, x: Complex) -> Complex:
    return div(op, complex(1), add(op, complex(1), exp(op, Complex(op.Neg(x.real), op.Neg(x.imag)))))


@on_complex("sgn")
def sgn(op: AtenBuilder, x: Complex) -> Complex:
    """Return x over its size, and zero for zero."""
    size, zero = absolute(op, x), op.cast(0, op.dtype)
    size = op.Where(op.Equal(size, zero), op.cast(1, op.dtype), size)
    return Complex(x.real / size, x.imag / size)


@on_complex("mH", "adjoint", "matrix_H", "H")
def adjoint(op: AtenBuilder, x: Complex) -> Complex:
    rank = len(op.input_shape(0))
    perm = [*range(rank - 2), rank - 1, rank - 2]
    return Complex(op.Transpose(x.real, perm=perm), op.Neg(op.Transpose(x.imag, perm=perm)))


@on_complex("linalg_vector_norm", "norm")
def norm(op: AtenBuilder, x: Complex, *arguments: Any, **named: Any) -> Value:
    size: Value = real_translation(op)(op, absolute(op, x), *arguments, **named)
    return size


@on_complex("l1_loss")
def l1_loss(op: AtenBuilder, x: Term, target: Term, *arguments: Any, **named: Any) -> Value:
    size = absolute(op, add(op, x, target, alpha=-1))
    loss: Value = real_translation(op)(op, size, op.cast(0, op.dtype), *arguments, **named)
    return loss


@on_complex("isfinite", "isnan", "isinf")
def classified(op: AtenBuilder, x: Complex) -> Value:
    kind = real_translation(op)
    join = op.And if "isfinite" in str(op.node.target) else op.Or
    return join(kind(op, x.real), kind(op, x.imag))
