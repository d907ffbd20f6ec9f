"""onnxruntime's elementwise operators on whole numbers that stand for reals, in standard operators.

Source: onnxruntime, docs/ContribOperators.md; where it is silent, what the CPU kernels do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.functions.contributed import MICROSOFT
from ontrain.functions.contributed_types import Types, real, standard_types
from ontrain.functions.quantization import in_range
from ontrain.functions.registry import composite
from ontrain.graph import Builder, static_dims
from ontrain.operators import Value

__all__ = ["reals", "wholes"]


def _binary_types(inputs: Sequence[Any], **_: object) -> Types:
    kind = inputs[0].dtype
    ((_kind, shape),) = standard_types("Add", [real(inputs[0]), real(inputs[3])])
    return [(kind, shape)]


def _zero(op: Builder, zero: Value | None, like: Value) -> Value:
    return op.const(np.zeros((), like.dtype.numpy())) if zero is None else op.Reshape(zero, [])


def reals(op: Builder, x: Value, scale: Value, zero: Value | None) -> Value:
    """Return the reals that whole numbers stand for, by one scale."""
    return op.DequantizeLinear(x, op.Reshape(scale, []), _zero(op, zero, x))


def wholes(op: Builder, y: Value, scale: Value, zero: Value | None, like: Value) -> Value:
    """Return reals as whole numbers by one scale; without a zero point it is the zero of the type of `like`."""
    return op.QuantizeLinear(y, op.Reshape(scale, []), _zero(op, zero, like))


def _rounded(op: Builder, y: Value, like: Value) -> Value:
    """Reals that have the zero point in them already, as whole numbers of the type of `like`."""
    return in_range(op, op.Round(y), like.dtype)


@composite("QLinearAdd", domain=MICROSOFT, infer=_binary_types)
def quantised_add(
    op: Builder, a: Value, a_scale: Value, a_zero: Value, b: Value, b_scale: Value, b_zero: Value, scale: Value,
    zero: Value | None = None,
) -> Value:  # fmt: skip
    """The sum of two quantised tensors, quantised.

    As in onnxruntime the scales are divided first, and the zero point is there before rounding: ties depend on both.
    """
    left, right = (op.Reshape(part, []) / op.Reshape(scale, []) for part in (a_scale, b_scale))
    zeros = [op.Cast(_zero(op, number, a), to=scale.dtype) for number in (a_zero, b_zero, zero)]
    whole = [op.Cast(x, to=scale.dtype) for x in (a, b)]
    shift = zeros[2] - (left * zeros[0] + right * zeros[1])
    return _rounded(op, whole[0] * left + (whole[1] * right + shift), a)


@composite("QLinearMul", domain=MICROSOFT, infer=_binary_types)
def quantised_mul(
    op: Builder, a: Value, a_scale: Value, a_zero: Value, b: Value, b_scale: Value, b_zero: Value, scale: Value,
    zero: Value | None = None,
) -> Value:  # fmt: skip
    """The product of two quantised tensors, quantised; scales are combined first, as in `QLinearAdd`."""
    ratio = op.Reshape(a_scale, []) * op.Reshape(b_scale, []) / op.Reshape(scale, [])
    left, right, shift = (op.Cast(_zero(op, number, a), to=scale.dtype) for number in (a_zero, b_zero, zero))
    product = (op.Cast(a, to=scale.dtype) - left) * (op.Cast(b, to=scale.dtype) - right)
    return _rounded(op, product * ratio + shift, a)


def _concat_types(inputs: Sequence[Any], *, axis: int = 0, **_: object) -> Types:
    ((_kind, shape),) = standard_types("Concat", [real(x) for x in inputs[2::3]], axis=axis)
    return [(inputs[2].dtype, shape)]


@composite("QLinearConcat", domain=MICROSOFT, infer=_concat_types)
def quantised_concat(op: Builder, scale: Value, zero: Value, *operands: Value, axis: int = 0) -> Value:
    """Quantised tensors side by side, by one scale."""
    groups = zip(operands[::3], operands[1::3], operands[2::3], strict=True)
    return wholes(op, op.Concat(*(reals(op, *group) for group in groups), axis=axis), scale, zero, operands[0])


@composite("QLinearSigmoid", domain=MICROSOFT, like=[0])
def quantised_sigmoid(
    op: Builder, x: Value, x_scale: Value, x_zero: Value, scale: Value, zero: Value | None = None
) -> Value:
    """Sigmoid of a quantised tensor, quantised."""
    return wholes(op, op.Sigmoid(reals(op, x, x_scale, x_zero)), scale, zero, x)


@composite("QLinearLeakyRelu", domain=MICROSOFT, like=[0])
def quantised_leaky_relu(
    op: Builder, x: Value, x_scale: Value, x_zero: Value, scale: Value, zero: Value | None = None,
    *, alpha: float = 0.01,
) -> Value:  # fmt: skip
    """LeakyRelu of a quantised tensor, quantised."""
    return wholes(op, op.LeakyRelu(reals(op, x, x_scale, x_zero), alpha=alpha), scale, zero, x)


@composite("QLinearSoftmax", domain=MICROSOFT, like=[0])
def quantised_softmax(
    op: Builder, x: Value, x_scale: Value, x_zero: Value, scale: Value, zero: Value | None = None,
    *, axis: int = -1, opset: int = 13,
) -> Value:  # fmt: skip
    """Softmax of a quantised tensor, quantised; before opset 13 over all dimensions from `axis` on."""
    numbers, shape = reals(op, x, x_scale, x_zero), static_dims(x)
    if opset < 13:
        lead = math.prod(shape[: axis % len(shape)])
        y = op.Reshape(op.Softmax(op.Reshape(numbers, [lead, -1]), axis=1), list(shape))
    else:
        y = op.Softmax(numbers, axis=axis)
    return wholes(op, y, scale, zero, x)


def _where_types(inputs: Sequence[Any], **_: object) -> Types:
    condition, x, y = inputs[0], inputs[1], inputs[4]
    return standard_types("Where", [condition, (x.dtype, x.shape), (x.dtype, y.shape)])


@composite("QLinearWhere", domain=MICROSOFT, infer=_where_types)
def quantised_where(
    op: Builder, condition: Value, x: Value, x_scale: Value, x_zero: Value, y: Value, y_scale: Value, y_zero: Value,
    scale: Value, zero: Value,
) -> Value:  # fmt: skip
    """Where of quantised tensors, quantised."""
    chosen = op.Where(condition, reals(op, x, x_scale, x_zero), reals(op, y, y_scale, y_zero))
    return wholes(op, chosen, scale, zero, x)


@composite(
    "QuantizeLinear",
    domain=MICROSOFT,
    infer=lambda inputs, **_: [
        (inputs[2].dtype if len(inputs) > 2 and inputs[2] is not None else ir.DataType.UINT8, inputs[0].shape)
    ],
)
def quantize_linear(op: Builder, x: Value, scale: Value, zero: Value | None = None, *, axis: int = 1) -> Value:
    """QuantizeLinear, which onnxruntime had for more types before the standard did."""
    return op.QuantizeLinear(x, scale, zero, axis=axis)


@composite("DequantizeLinear", domain=MICROSOFT, infer=lambda inputs, **_: [(inputs[1].dtype, inputs[0].shape)])
def dequantize_linear(op: Builder, x: Value, scale: Value, zero: Value | None = None, *, axis: int = 1) -> Value:
    """DequantizeLinear, which onnxruntime had for more types before the standard did."""
    return op.DequantizeLinear(x, scale, zero, axis=axis)
