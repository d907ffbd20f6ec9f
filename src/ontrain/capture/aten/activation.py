"""Elementwise functions of one tensor, softmax and dropout."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import torch

from ontrain.capture.aten.precision import in_single
from ontrain.capture.aten.registry import aten
from ontrain.capture.context import AtenBuilder, Scalar
from ontrain.operators import Value
from ontrain.sizes import Size

__all__: list[str] = []

# Operators that mean the same in ONNX; an integer operand becomes the float type that torch promotes it to.
_SAME = {
    "relu": "Relu", "tanh": "Tanh", "sigmoid": "Sigmoid", "exp": "Exp", "log": "Log", "sqrt": "Sqrt",
    "abs": "Abs", "neg": "Neg", "reciprocal": "Reciprocal", "sin": "Sin", "cos": "Cos", "tan": "Tan", "asin": "Asin",
    "acos": "Acos", "atan": "Atan", "sinh": "Sinh", "cosh": "Cosh", "asinh": "Asinh", "acosh": "Acosh",
    "atanh": "Atanh", "sign": "Sign", "mish": "Mish", "hardswish": "HardSwish",
}  # fmt: skip


def _same(op_type: str) -> Callable[..., Value]:
    def translate(op: AtenBuilder, x: Value) -> Value:
        return op.call("", op_type, [op.cast(x, op.dtype)], {})

    return translate


for _name, _op_type in _SAME.items():
    aten(_name)(_same(_op_type))


@aten("floor", "ceil", "round.default")
def rounding(op: AtenBuilder, x: Value) -> Value:
    name = str(op.node.target).split(".")[1].removesuffix("_")
    return op.call("", name.capitalize(), [x], {}) if op.val.dtype.is_floating_point else x


@aten("round.decimals")
@in_single
def round_decimals(op: AtenBuilder, x: Value, *, decimals: int) -> Value:
    factor = op.cast(10.0**decimals, x.dtype)
    return op.Round(x * factor) / factor


@aten("trunc", "fix")
def trunc(op: AtenBuilder, x: Value) -> Value:
    return op.Sign(x) * op.Floor(op.Abs(x)) if op.val.dtype.is_floating_point else x


@aten("frac")
def frac(op: AtenBuilder, x: Value) -> Value:
    return x - trunc(op, x)


@aten("rsqrt")
@in_single
def rsqrt(op: AtenBuilder, x: Value) -> Value:
    return op.Reciprocal(op.Sqrt(op.cast(x, op.dtype)))


@aten("square")
def square(op: AtenBuilder, x: Value) -> Value:
    return x * x


@aten("log1p")
@in_single
def log1p(op: AtenBuilder, x: Value) -> Value:
    x = op.cast(x, op.dtype)
    zero, one, two = (op.cast(value, op.dtype) for value in (0, 1, 2))
    # 1 + x forgets the last places of a small x; log(1 + x) = 2 atanh(x / (2 + x)) does not.
    small = op.Less(op.Abs(x), op.cast(0.5, op.dtype))
    near, far = op.Where(small, x, zero), op.Where(small, one, x)
    return op.Where(small, two * op.Atanh(near / (two + near)), op.Log(one + far))


@aten("expm1")
@in_single
def expm1(op: AtenBuilder, x: Value) -> Value:
    x = op.cast(x, op.dtype)
    zero, one, half = (op.cast(value, op.dtype) for value in (0, 1, 0.5))
    # exp(x) - 1 forgets the last places of a small x; tanh(x / 2) · (exp(x) + 1) does not.
    small = op.Less(op.Abs(x), one)
    near = op.Where(small, x, zero)
    return op.Where(small, op.Tanh(near * half) * (op.Exp(near) + one), op.Exp(x) - one)


@aten("log2", "log10")
@in_single
def log_base(op: AtenBuilder, x: Value) -> Value:
    base = 2.0 if "log2" in str(op.node.target) else 10.0
    return op.Log(op.cast(x, op.dtype)) * op.cast(1 / np.log(base), op.dtype)


@aten("exp2")
@in_single
def exp2(op: AtenBuilder, x: Value) -> Value:
    return op.Exp(op.cast(x, op.dtype) * op.cast(np.log(2.0), op.dtype))


@aten("erf")
def erf(op: AtenBuilder, x: Value) -> Value:
    return op.Erf(op.cast(x, op.dtype))


@aten("erfc")
@in_single
def erfc(op: AtenBuilder, x: Value) -> Value:
    return op.cast(1, op.dtype) - op.Erf(op.cast(x, op.dtype))


@aten("gelu")
def gelu(op: AtenBuilder, x: Value, *, approximate: str = "none") -> Value:
    return op.Gelu(x, approximate=approximate)


@aten("silu")
def silu(op: AtenBuilder, x: Value) -> Value:
    return x * op.Sigmoid(x)


@aten("softplus")
def softplus(op: AtenBuilder, x: Value, beta: float = 1, threshold: float = 20) -> Value:
    if beta == 1 and threshold == 20:
        return op.Softplus(x)
    return _scaled_softplus(op, x, beta, threshold)


@in_single
def _scaled_softplus(op: AtenBuilder, x: Value, beta: float, threshold: float) -> Value:
    b = op.cast(beta, x.dtype)
    return op.Where(op.Greater(x * b, op.cast(threshold, x.dtype)), x, op.Softplus(x * b) / b)


@aten("log_sigmoid")
def log_sigmoid(op: AtenBuilder, x: Value) -> Value:
    return op.Neg(op.Softplus(op.Neg(x)))


@aten("log_sigmoid_forward")
def log_sigmoid_forward(op: AtenBuilder, x: Value) -> tuple[Value, None]:
    return log_sigmoid(op, x), None


@aten("elu")
def elu(op: AtenBuilder, x: Value, alpha: Scalar = 1, scale: Scalar = 1, input_scale: Scalar = 1) -> Value:
    if scale == input_scale == 1 and not isinstance(alpha, Size):
        return op.Elu(x, alpha=float(alpha))
    return _scaled_elu(op, x, alpha, scale, input_scale)


@in_single
def _scaled_elu(op: AtenBuilder, x: Value, alpha: Scalar, scale: Scalar, input_scale: Scalar) -> Value:
    if input_scale != 1 or isinstance(alpha, Size):
        # The exponential of a great x would be infinite, and its gradient no number though it is not chosen.
        low = op.Min(x, op.cast(0, x.dtype)) * op.cast(input_scale, x.dtype)
        negative = (op.Exp(low) - op.cast(1, x.dtype)) * op.cast(alpha, x.dtype)
        y = op.Where(op.Greater(x, op.cast(0, x.dtype)), x, negative)
    else:
        y = op.Elu(x, alpha=float(alpha))
    return y if scale == 1 else y * op.cast(scale, x.dtype)


@aten("selu")
def selu(op: AtenBuilder, x: Value) -> Value:
    # ONNX's defaults are these numbers in single precision.
    return op.Selu(x, alpha=1.6732632423543772, gamma=1.0507009873554805)


@aten("celu")
@in_single
def celu(op: AtenBuilder, x: Value, alpha: float = 1.0) -> Value:
    if x.dtype == ir.DataType.FLOAT:
        return op.Celu(x, alpha=float(alpha))
    a = op.cast(alpha, x.dtype)  # ONNX has Celu in single precision only
    return a * op.Elu(x / a, alpha=1.0)


@aten("leaky_relu")
def leaky_relu(op: AtenBuilder, x: Value, negative_slope: Scalar = 0.01) -> Value:
    if isinstance(negative_slope, Size):
        return op.Where(op.Greater(x, op.cast(0, x.dtype)), x, x * op.cast(negative_slope, x.dtype))
    return op.LeakyRelu(x, alpha=float(negative_slope))


@aten("prelu", "_prelu_kernel")
def prelu(op: AtenBuilder, x: Value, weight: Value) -> Value:
    rank = len(op.input_shape(0))
    if len(op.input_shape(1)) == 1 and rank > 2:
        weight = op.Reshape(weight, [-1, *[1] * (rank - 2)])
    elif len(op.input_shape(1)) == 1 and rank == 0:
        weight = op.Squeeze(weight, [0])
    return op.PRelu(x, weight)


@aten("hardtanh")
def hardtanh(op: AtenBuilder, x: Value, min_val: float = -1, max_val: float = 1) -> Value:
    return op.composite("Hardtanh", x, op.cast(min_val, x.dtype), op.cast(max_val, x.dtype))


@aten("relu6")
def relu6(op: AtenBuilder, x: Value) -> Value:
    return hardtanh(op, x, 0, 6)


@aten("hardsigmoid")
def hardsigmoid(op: AtenBuilder, x: Value) -> Value:
    return op.HardSigmoid(x, alpha=1 / 6, beta=0.5)


@aten("softsign")
@in_single
def softsign(op: AtenBuilder, x: Value) -> Value:
    return x / (op.cast(1, x.dtype) + op.Abs(x))


@aten("threshold")
@in_single
def threshold(op: AtenBuilder, x: Value, limit: float, value: float) -> Value:
    """What is no number stays what it is: it is not below the limit."""
    return op.Where(op.LessOrEqual(x, op.cast(limit, x.dtype)), op.cast(value, x.dtype), x)


@aten("glu")
@in_single
def glu(op: AtenBuilder, x: Value, dim: int = -1) -> Value:
    a, b = op.Split(x, axis=dim, num_outputs=2, outputs=2)
    return a * op.Sigmoid(b)


@aten("softmax.int", "_softmax")
def softmax(op: AtenBuilder, x: Value, dim: int, dtype: torch.dtype | None = None) -> Value:
    return _along(op, "Softmax", op.cast(x, op.dtype), dim)


def _along(op: AtenBuilder, op_type: str, x: Value, axis: int) -> Value:
    """An operator along an axis; torch takes a single number for a vector of one."""
    if op.input_shape(0):
        return op.call("", op_type, [x], {"axis": axis})
    return op.Squeeze(op.call("", op_type, [op.Unsqueeze(x, [0])], {"axis": 0}), [0])


@aten("log_softmax.int", "_log_softmax")
def log_softmax(op: AtenBuilder, x: Value, dim: int, dtype: torch.dtype | None = None) -> Value:
    return _along(op, "LogSoftmax", op.cast(x, op.dtype), dim)


@aten("_safe_softmax")
def safe_softmax(op: AtenBuilder, x: Value, dim: int, dtype: torch.dtype | None = None) -> Value:
    x = op.cast(x, op.dtype)
    if not op.input_shape(0):
        return op.Squeeze(_safe_softmax(op, op.Unsqueeze(x, [0]), 0), [0])
    return _safe_softmax(op, x, dim)


def _safe_softmax(op: AtenBuilder, x: Value, dim: int) -> Value:
    lowest = op.cast(-np.inf, op.dtype)
    dead = op.Equal(op.ReduceMax(x, [dim], keepdims=1), lowest)
    zero = op.cast(0, op.dtype)
    return op.Where(dead, zero, op.Softmax(op.Where(dead, zero, x), axis=dim))


@aten("dropout", "native_dropout")
def dropout(op: AtenBuilder, x: Value, p: float, train: bool | None = True) -> Value | tuple[Value, Value]:
    native = "native" in str(op.node.target)
    if train is False or p == 0:
        return (x, op.expand(op.const(True), op.shape, [])) if native else x
    y, mask = op.Dropout(x, op.const(float(p)), op.const(True), outputs=2)
    return (y, mask) if native else y


@aten("feature_dropout")
def feature_dropout(op: AtenBuilder, x: Value, p: float, train: bool) -> Value:
    """Drops whole channels: Dropout on a tensor of ones [N, C, 1, …]."""
    if not train or p == 0:
        return x
    shape = op.shape
    ones = op.expand(op.cast(1, x.dtype), [*shape[:2], *[1] * (len(shape) - 2)], [])
    scaled, _ = op.Dropout(ones, op.const(float(p)), op.const(True), outputs=2)
    return x * scaled
