"""Gradients of activations and of dropout."""

from __future__ import annotations

import math

from ontrain.functions.registry import composite
from ontrain.graph import Builder
from ontrain.operators import Value

__all__: list[str] = []


@composite("GeluGrad", like=[1])
def gelu_grad(op: Builder, dy: Value, x: Value, *, approximate: str = "none") -> Value:
    """dy · d Gelu(x)/dx, exact or for the tanh approximation (https://onnx.ai/onnx/operators/onnx__Gelu.html)."""
    if approximate == "tanh":
        c, k = math.sqrt(2 / math.pi), 0.044715
        t = op.Tanh(c * (x + k * (x * x * x)))
        return dy * (0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * (c * (1.0 + 3 * k * (x * x))))
    cdf = 0.5 * (1.0 + op.Erf(x * (1 / math.sqrt(2))))
    pdf = op.Exp(-0.5 * (x * x)) * (1 / math.sqrt(2 * math.pi))
    return dy * (cdf + x * pdf)


@composite("Silu", like=[0])
def silu(op: Builder, x: Value) -> Value:
    """x · sigmoid(x). Source: torch.nn.functional.silu; Swish of the standard's opset 24 with alpha 1."""
    return x * op.Sigmoid(x)


@composite("SiluGrad", like=[1])
def silu_grad(op: Builder, dy: Value, x: Value) -> Value:
    """dy · d Silu(x)/dx = dy · s · (1 + x · (1 − s)) for s = sigmoid(x)."""
    s = op.Sigmoid(x)
    return dy * (s * (1.0 + x * (1.0 - s)))


@composite("Hardtanh", like=[0])
def hardtanh(
    op: Builder, x: Value, low: Value | None = None, high: Value | None = None, *, strict: int = 0
) -> Value:  # fmt: skip
    """Clip of a shape and of two numbers; unlike Clip's, its gradient is zero on a bound (torch's hardtanh).

    With `strict` it is zero for a NaN, too (torch.clamp by numbers, since torch 2.14).
    """
    return op.Clip(x, low, high)


@composite("HardtanhGrad", like=[1])
def hardtanh_grad(op: Builder, dy: Value, x: Value, *, low: float = -1.0, high: float = 1.0) -> Value:
    """dy where low < x < high."""
    return op.Where(op.Or(op.LessOrEqual(x, low), op.GreaterOrEqual(x, high)), 0.0, dy)


@composite("ReluGrad", like=[1])
def relu_grad(op: Builder, dy: Value, y: Value) -> Value:
    """dy where Relu's output y is above zero."""
    return op.Where(op.Greater(y, 0.0), dy, 0.0)


@composite("LeakyReluGrad", like=[1])
def leaky_relu_grad(op: Builder, dy: Value, x: Value, *, alpha: float = 0.01) -> Value:
    """dy where x > 0, else alpha · dy."""
    return op.Where(op.Greater(x, 0.0), dy, dy * alpha)


@composite("EluGrad", like=[1])
def elu_grad(
    op: Builder, dy: Value, x: Value, *, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0
) -> Value:
    """dy · scale where x > 0, else dy · scale · alpha · input_scale · exp(x · input_scale).

    Source: torch.nn.functional.elu with the arguments of aten::elu; of Selu and Celu, too.
    """
    below = op.Exp(op.Min(x, 0.0) * input_scale)
    return op.Where(op.Greater(x, 0.0), dy * scale, dy * (scale * alpha * input_scale * below))


@composite("HardSigmoidGrad", like=[1])
def hard_sigmoid_grad(op: Builder, dy: Value, x: Value, *, alpha: float = 0.2, beta: float = 0.5) -> Value:
    """alpha · dy on the slope, where 0 < alpha · x + beta < 1."""
    if not alpha:
        return dy * 0.0
    low, high = sorted((-beta / alpha, (1 - beta) / alpha))
    return op.Where(op.And(op.Greater(x, low), op.Less(x, high)), dy * alpha, 0.0)


@composite("HardSwishGrad", like=[1])
def hard_swish_grad(op: Builder, dy: Value, x: Value) -> Value:
    """For y = x · clip(x / 6 + 1/2, 0, 1): zero up to −3, dy from 3 on, dy · (x / 3 + 1/2) between."""
    inner = op.Where(op.Less(x, 3.0), dy * (x / 3 + 0.5), dy)
    return op.Where(op.Greater(x, -3.0), inner, 0.0)


@composite("MishGrad", like=[1])
def mish_grad(op: Builder, dy: Value, x: Value) -> Value:
    """For y = x · t, t = tanh(softplus(x)): dy · (t + x · (1 − t²) · sigmoid(x))."""
    t = op.Tanh(op.Softplus(x))
    return dy * (t + x * (1 - t * t) * op.Sigmoid(x))


@composite("TanhGrad", like=[1])
def tanh_grad(op: Builder, dy: Value, y: Value) -> Value:
    """dy · (1 − y²) from Tanh's output y."""
    return dy * (1 - y * y)


@composite("SigmoidGrad", like=[1])
def sigmoid_grad(op: Builder, dy: Value, y: Value) -> Value:
    """dy · y · (1 − y) from Sigmoid's output y."""
    return dy * (y * (1 - y))


@composite("SoftmaxGrad", like=[1])
def softmax_grad(op: Builder, dy: Value, y: Value, *, axis: int = -1) -> Value:
    """Adjoint of Softmax's input from its output y: y · (dy − Σ dy·y) along `axis`."""
    return y * (dy - op.ReduceSum(dy * y, [axis], keepdims=1))


@composite("LogSoftmaxGrad", like=[1])
def log_softmax_grad(op: Builder, dy: Value, y: Value, *, axis: int = -1) -> Value:
    """Adjoint of LogSoftmax's input from its output y: dy − exp(y) · Σ dy along `axis`."""
    return dy - op.Exp(y) * op.ReduceSum(dy, [axis], keepdims=1)


@composite("DropoutGrad", like=[0])
def dropout_grad(op: Builder, dy: Value, mask: Value, *, ratio: float = 0.5) -> Value:
    """dy where the mask kept the element, scaled by 1 / (1 − ratio), else zero."""
    return op.Where(mask, dy * (1 / (1 - ratio)), 0.0)
