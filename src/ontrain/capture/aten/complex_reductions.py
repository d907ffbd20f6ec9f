"""Products, variances and running products of complex numbers."""

from __future__ import annotations

import math
from typing import Any

from ontrain.capture.aten.complex import Complex, Term, as_complex, mul, on_complex, real_translation
from ontrain.capture.aten.creation import filled
from ontrain.capture.context import AtenBuilder
from ontrain.operators import Value

__all__: list[str] = []


@on_complex("var")
def var(op: AtenBuilder, x: Complex, *arguments: Any, **named: Any) -> Value:
    """The variances of both parts together."""
    real = real_translation(op)
    variance: Value = real(op, x.real, *arguments, **named) + real(op, x.imag, *arguments, **named)
    return variance


@on_complex("std")
def std(op: AtenBuilder, x: Complex, *arguments: Any, **named: Any) -> Value:
    """The root of the variance: the length of the deviations of both parts."""
    real = real_translation(op)
    return _length(op, *(real(op, part, *arguments, **named) for part in (x.real, x.imag)))


def _length(op: AtenBuilder, *parts: Value) -> Value:
    return op.ReduceL2(op.Concat(*(op.Unsqueeze(part, [-1]) for part in parts), axis=-1), [-1], keepdims=0)


@on_complex("var_mean", "std_mean")
def spread_and_mean(op: AtenBuilder, x: Complex, *arguments: Any, **named: Any) -> tuple[Value, Complex]:
    """The variance or deviation of both parts together, and the mean."""
    real = real_translation(op)
    (of_real, real_mean), (of_imag, imag_mean) = (real(op, part, *arguments, **named) for part in (x.real, x.imag))
    spread = _length(op, of_real, of_imag) if "std_mean" in str(op.node.target) else of_real + of_imag
    return spread, Complex(real_mean, imag_mean)


@on_complex("prod")
def prod(
    op: AtenBuilder, x: Term, dim: int | None = None, keepdim: bool = False, *, dtype: object = None
) -> Complex:  # fmt: skip
    """Half of the elements times the other half, and so on."""
    y = as_complex(op, x)
    y, shape = Complex(y.real, y.imag), op.input_shape(0)
    axis = 0 if dim is None or not shape else dim % len(shape)
    if dim is None or not shape:
        y = Complex(op.Reshape(y.real, [-1]), op.Reshape(y.imag, [-1]))
    lengths = [shape[axis]] if dim is not None and shape else shape
    if not all(isinstance(length, int) for length in lengths):
        raise op.refuse("a product of complex numbers whose count varies", "it is a product of halves", "fix the size")
    count = math.prod(length for length in lengths if isinstance(length, int))

    while count > 1:
        half = count // 2
        cuts = ((0, half), (half, 2 * half), (2 * half, count))
        first, second, rest = (_cut(op, y, *ends, axis) for ends in cuts)
        y = mul(op, first, second)
        if count % 2:
            y = _joined(op, y, rest, axis)
        count -= half
    if not count:
        return Complex(filled(op, 1), filled(op, 0))
    return y if keepdim else Complex(op.Squeeze(y.real, [axis]), op.Squeeze(y.imag, [axis]))


@on_complex("cumprod")
def cumprod(op: AtenBuilder, x: Term, dim: int, *, dtype: object = None) -> Complex:
    """Products of 1, 2, 4, … neighbours: each pass multiplies by what lies as far before."""
    y, shape = as_complex(op, x), op.input_shape(0)
    if not shape:
        return y
    axis = dim % len(shape)
    length = shape[axis]
    if not isinstance(length, int):
        raise op.refuse("running products of complex numbers whose count varies", "it takes passes", "fix the size")
    width = 1
    while width < length:
        first, rest, earlier = (_cut(op, y, *ends, axis) for ends in ((0, width), (width, length), (0, length - width)))
        y = _joined(op, first, mul(op, rest, earlier), axis)
        width *= 2
    return y


def _cut(op: AtenBuilder, x: Complex, start: int, end: int, axis: int) -> Complex:
    return Complex(op.Slice(x.real, [start], [end], [axis]), op.Slice(x.imag, [start], [end], [axis]))


def _joined(op: AtenBuilder, first: Complex, rest: Complex, axis: int) -> Complex:
    return Complex(op.Concat(first.real, rest.real, axis=axis), op.Concat(first.imag, rest.imag, axis=axis))
