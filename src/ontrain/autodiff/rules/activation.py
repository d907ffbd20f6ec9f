"""Activations, softmax and dropout."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from ontrain.autodiff.registry import Op, elementwise, gradient, zero_gradient
from ontrain.graph import DOMAIN

__all__: list[str] = []

zero_gradient("Hardmax")

elementwise("Tanh", lambda op, x, y: 1 - y * y)
elementwise("Sigmoid", lambda op, x, y: y * (1 - y))
elementwise("Softplus", lambda op, x, y: op.Sigmoid(x))
elementwise("Softsign", lambda op, x, y: op.Pow(1 + op.Abs(x), -2.0))
elementwise("Elu", lambda op, x, y, alpha: op.Where(op.Greater(x, 0.0), 1.0, y + alpha))
elementwise("Celu", lambda op, x, y, alpha: op.Where(op.Greater(x, 0.0), 1.0, y / alpha + 1))
elementwise("Selu", lambda op, x, y, alpha, gamma: op.Where(op.Greater(x, 0.0), gamma, y + alpha * gamma))


@gradient("Relu")
def relu(op: Op, dy: ir.Value, x: ir.Value) -> Any:
    """dy where y > 0."""
    return op.Where(op.Greater(op.outputs[0], 0.0), dy, 0.0)


@gradient("ThresholdedRelu")
def thresholded_relu(op: Op, dy: ir.Value, x: ir.Value, *, alpha: float) -> Any:
    """dy where x > alpha."""
    return op.Where(op.Greater(x, alpha), dy, 0.0)


@gradient("LeakyRelu")
def leaky_relu(op: Op, dy: ir.Value, x: ir.Value, *, alpha: float) -> Any:
    """dy where x > 0, else alpha · dy."""
    return op.Where(op.Greater(x, 0.0), dy, dy * alpha)


@gradient("PRelu")
def prelu(op: Op, dy: ir.Value, x: ir.Value, slope: ir.Value) -> Any:
    """As LeakyRelu; the slope gets dy · x where x ≤ 0."""
    positive = op.Greater(x, 0.0)
    return op.Where(positive, dy, dy * slope), op.Where(positive, 0.0, dy * x) if op.wanted[1] else None


@gradient("Shrink")
def shrink(op: Op, dy: ir.Value, x: ir.Value, *, bias: float, lambd: float) -> Any:
    """dy outside [−lambd, lambd]."""
    return op.Where(op.Greater(op.Abs(x), lambd), dy, 0.0)


@gradient("HardSigmoid")
def hard_sigmoid(op: Op, dy: ir.Value, x: ir.Value, *, alpha: float, beta: float) -> Any:
    """alpha · dy on the slope, where 0 < y < 1."""
    y = op.outputs[0]
    return op.Where(op.And(op.Greater(y, 0.0), op.Less(y, 1.0)), dy * alpha, 0.0)


@gradient("HardSwish")
def hard_swish(op: Op, dy: ir.Value, x: ir.Value) -> Any:
    """For y = x · clip(x / 6 + 1/2, 0, 1): zero below −3, dy above 3, dy · (x / 3 + 1/2) between."""
    inner = op.Where(op.Less(x, 3.0), dy * (x / 3 + 0.5), dy)
    return op.Where(op.Greater(x, -3.0), inner, 0.0)


@gradient("Mish")
def mish(op: Op, dy: ir.Value, x: ir.Value) -> Any:
    """For y = x · t, t = tanh(softplus(x)): dy · (t + x · (1 − t²) · sigmoid(x))."""
    t = op.Tanh(op.Softplus(x))
    return dy * (t + x * (1 - t * t) * op.Sigmoid(x))


@gradient("Gelu")
def gelu(op: Op, dy: ir.Value, x: ir.Value, *, approximate: str) -> Any:
    """The composite GeluGrad."""
    return op.composite("GeluGrad", dy, x, approximate=approximate)


@gradient("Silu", domain=DOMAIN)
def silu(op: Op, dy: ir.Value, x: ir.Value) -> Any:
    """The composite SiluGrad."""
    return op.composite("SiluGrad", dy, x)


@gradient("Softmax")
def softmax(op: Op, dy: ir.Value, x: ir.Value, *, axis: int) -> Any:
    """The composite SoftmaxGrad, from the saved probabilities."""
    return op.composite("SoftmaxGrad", dy, op.outputs[0], axis=axis)


@gradient("LogSoftmax")
def log_softmax(op: Op, dy: ir.Value, x: ir.Value, *, axis: int) -> Any:
    """The composite LogSoftmaxGrad, from the saved log-probabilities."""
    return op.composite("LogSoftmaxGrad", dy, op.outputs[0], axis=axis)


@gradient("Dropout")
def dropout(
    op: Op, dy: ir.Value, x: ir.Value, ratio: ir.Value | None = None, training: ir.Value | None = None,
    *, seed: int | None = None,
) -> Any:  # fmt: skip
    """dy through the forward pass's own mask, scaled by 1 / (1 − ratio); dy itself outside training."""
    on, rate = op.constant(2), op.constant(1) if ratio is None or ratio.const_value is not None else None
    if on is None or not on:
        return dy, None, None
    if rate is None and ratio is not None:
        return op.Where(op.saved(1), dy / (1 - op.Cast(ratio, to=dy.dtype)), 0.0), None, None
    share = 0.5 if rate is None else float(rate)
    return op.composite("DropoutGrad", dy, op.saved(1), ratio=share) if share else dy, None, None
