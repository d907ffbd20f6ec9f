"""Quantisation, so that providers without kernels run it and scales are trained."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.functions.registry import composite, expansion
from ontrain.graph import Builder, static_dims
from ontrain.operators import Value

__all__ = ["in_range"]


def _spread(op: Builder, value: Value, x: Value, axis: int, block_size: int) -> Value:
    """A scale or zero point laid along x: one for all, one per index of `axis`, or one per block of indices."""
    shape, own = static_dims(x), static_dims(value)
    if math.prod(own) == 1:
        return op.Reshape(value, [])
    place = axis % len(shape)
    if len(own) == 1 and not block_size:
        return op.Reshape(value, [-1 if i == place else 1 for i in range(len(shape))])
    lead, rest = list(own[: place + 1]), list(own[place + 1 :])
    repeated = op.Reshape(op.Expand(op.Unsqueeze(value, [place + 1]), [*lead, block_size, *rest]),
                          [*lead[:-1], lead[-1] * block_size, *rest])  # fmt: skip
    return op.Slice(repeated, [0], [shape[place]], [place])


@expansion("DequantizeLinear")
def dequantize_linear(
    op: Builder, x: Value, scale: Value, zero: Value | None = None,
    *, axis: int = 1, block_size: int = 0, output_dtype: int = 0,
) -> Value:  # fmt: skip
    """(x − zero) · scale; the scale takes a gradient (https://onnx.ai/onnx/operators/onnx__DequantizeLinear.html)."""
    work = ir.DataType(output_dtype) if output_dtype else scale.dtype
    numbers = op.Cast(x, to=work)
    if zero is not None:
        numbers = numbers - _spread(op, op.Cast(zero, to=work), x, axis, block_size)
    return numbers * _spread(op, op.Cast(scale, to=work), x, axis, block_size)


@expansion("QuantizeLinear")
def quantize_linear(
    op: Builder, x: Value, scale: Value, zero: Value | None = None,
    *, axis: int = 1, block_size: int = 0, output_dtype: int = 0, precision: int = 0, saturate: int = 1,
) -> Value:  # fmt: skip
    """round(x / scale) + zero, brought into the range of the result's type.

    Where nothing else is said, numbers of 16 bits are divided in 32, as by onnxruntime: fewer bits would move ties, and
    do not hold the bounds of wide results. NaN becomes the least number, as in onnxruntime.
    Source: https://onnx.ai/onnx/operators/onnx__QuantizeLinear.html
    """
    target = zero.dtype if zero is not None else ir.DataType(output_dtype) if output_dtype else ir.DataType.UINT8
    work = ir.DataType(precision) if precision else ir.DataType.FLOAT if x.dtype.bitwidth < 32 else x.dtype
    numbers = op.Cast(x, to=work) / _spread(op, op.Cast(scale, to=work), x, axis, block_size)
    if not target.is_floating_point():
        numbers = op.Round(numbers)
    if zero is not None:
        numbers = numbers + _spread(op, op.Cast(zero, to=work), x, axis, block_size)
    if target.is_floating_point():
        return op.Cast(numbers, to=target, saturate=saturate)
    return in_range(op, numbers, target)


def in_range(op: Builder, numbers: Value, target: ir.DataType) -> Value:
    """Whole numbers that are reals, in a type of whole numbers: its bounds stand for all beyond, the lower one for NaN.

    Args:
        op: where this is emitted.
        numbers: of a float type whose numbers the bounds are among.
        target: the type.
    """
    least, greatest = float(target.min), float(target.max)
    numbers = op.Clip(numbers, least, greatest)
    if least:
        numbers = op.composite("ReplaceNan", numbers, number=least)
    elif target == ir.DataType.UINT8:
        # By way of more bits, because torch has vectors for conversions to numbers with a sign only.
        numbers = op.Cast(numbers, to=ir.DataType.INT16)
    return op.Cast(numbers, to=target)


@composite("ReplaceNan", like=[0])
def replace_nan(op: Builder, x: Value, *, number: float) -> Value:
    """A number in the place of each NaN; everything else stays, infinities too."""
    return op.Where(op.IsNaN(x), number, x)


@expansion("DynamicQuantizeLinear")
def dynamic_quantize_linear(op: Builder, x: Value) -> tuple[Value, Value, Value]:
    """x as uint8, with the scale and the zero point of the range of its numbers, which zero belongs to.

    As in onnxruntime NaN does not count for the range, and the scale of nothing but zeros is one.
    Source: https://onnx.ai/onnx/operators/onnx__DynamicQuantizeLinear.html
    """
    numbers = op.composite("ReplaceNan", x, number=0.0)
    low, high = (op.Reshape(reduced, []) for reduced in (op.ReduceMin(numbers), op.ReduceMax(numbers)))
    low, high = op.Min(low, 0.0), op.Max(high, 0.0)
    scale = op.Where(op.Equal(low, high), 1.0, (high - low) / 255.0)
    place = 0.0 - low / scale
    zero = op.Cast(op.Round(op.Clip(op.Where(op.IsNaN(place), 255.0, place), 0.0, 255.0)), to=ir.DataType.UINT8)
    return op.QuantizeLinear(x, scale, zero), scale, zero


@expansion("Hardmax")
def hardmax(op: Builder, x: Value, *, axis: int = -1) -> Value:
    """One at the first largest element along `axis`, zero elsewhere."""
    size = static_dims(x)[axis]
    hot = op.OneHot(op.ArgMax(x, axis=axis, keepdims=0), size, op.const([0, 1], ir.DataType.INT64), axis=axis)
    return op.Cast(hot, to=x.dtype)


@expansion("MatMulInteger")
def matmul_integer(op: Builder, a: Value, b: Value, a_zero: Value | None = None, b_zero: Value | None = None) -> Value:
    """(a − a_zero) (b − b_zero) in 32 bits; a zero point may be one number, or one a row of a and a column of b."""
    left, right = _from_zero(op, a, a_zero, column=True), _from_zero(op, b, b_zero, column=False)
    return op.MatMul(left, right)


def _from_zero(op: Builder, x: Value, zero: Value | None, *, column: bool) -> Value:
    wide = op.Cast(x, to=ir.DataType.INT32)
    if zero is None:
        return wide
    zero = op.Cast(zero, to=ir.DataType.INT32)
    return op.Sub(wide, op.Unsqueeze(zero, [-1]) if column and len(static_dims(zero)) == 1 else zero)


@expansion("ConvInteger")
def conv_integer(
    op: Builder, x: Value, w: Value, x_zero: Value | None = None, w_zero: Value | None = None, **attributes: Any
) -> Value:
    """The convolution of x − x_zero with w − w_zero, in double precision, which holds every 32-bit number."""
    wide, rank = [op.Cast(v, to=ir.DataType.DOUBLE) for v in (x, w)], len(static_dims(w))
    if x_zero is not None:
        wide[0] = wide[0] - op.Cast(x_zero, to=ir.DataType.DOUBLE)
    if w_zero is not None:
        wide[1] = wide[1] - op.Reshape(op.Cast(w_zero, to=ir.DataType.DOUBLE), [-1] + [1] * (rank - 1))
    return op.Cast(op.Conv(*wide, **attributes), to=ir.DataType.INT32)


@expansion("QLinearMatMul")
def qlinear_matmul(
    op: Builder, a: Value, a_scale: Value, a_zero: Value, b: Value, b_scale: Value, b_zero: Value, scale: Value,
    zero: Value,
) -> Value:  # fmt: skip
    """Dequantised, multiplied, quantised."""
    left, right = op.DequantizeLinear(a, a_scale, a_zero, axis=-2), op.DequantizeLinear(b, b_scale, b_zero, axis=-1)
    return op.QuantizeLinear(op.MatMul(left, right), scale, zero, axis=-2)


@expansion("QLinearConv")
def qlinear_conv(
    op: Builder, x: Value, x_scale: Value, x_zero: Value, w: Value, w_scale: Value, w_zero: Value, scale: Value,
    zero: Value, bias: Value | None = None, **attributes: Any,
) -> Value:  # fmt: skip
    """Dequantised, convolved, quantised; the bias counts in units of x_scale · w_scale."""
    if bias is not None:
        bias = op.Cast(bias, to=x_scale.dtype) * x_scale * w_scale
    convolved = op.Conv(op.DequantizeLinear(x, x_scale, x_zero), op.DequantizeLinear(w, w_scale, w_zero, axis=0), bias,
                   **attributes)  # fmt: skip
    return op.QuantizeLinear(convolved, scale, zero)


@expansion("EyeLike")
def eye_like(op: Builder, x: Value, *, dtype: int = 0, k: int = 0) -> Value:
    """Ones on the k-th diagonal of a matrix of x's shape."""
    rows, columns = static_dims(x)
    return op.Identity(op.const(np.eye(rows, columns, k), ir.DataType(dtype) if dtype else x.dtype))
