"""Gradients of activations and of dropout."""

from __future__ import annotations

import math
from typing import Any

from ontrain.functions.registry import composite

__all__: list[str] = []


@composite("GeluGrad", like=[1])
def gelu_grad(op: Any, dy: Any, x: Any, *, approximate: str = "none") -> Any:
    """dy · d Gelu(x)/dx, exact or for the tanh approximation (https://onnx.ai/onnx/operators/onnx__Gelu.html)."""
    if approximate == "tanh":
        c, k = math.sqrt(2 / math.pi), 0.044715
        t = op.Tanh(c * (x + k * (x * x * x)))
        return dy * (0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * (c * (1.0 + 3 * k * (x * x))))
    cdf = 0.5 * (1.0 + op.Erf(x * (1 / math.sqrt(2))))
    pdf = op.Exp(-0.5 * (x * x)) * (1 / math.sqrt(2 * math.pi))
    return dy * (cdf + x * pdf)


@composite("Silu", like=[0])
def silu(op: Any, x: Any) -> Any:
    """x · sigmoid(x). Source: torch.nn.functional.silu; Swish of the standard's opset 24 with alpha 1."""
    return x * op.Sigmoid(x)


@composite("SiluGrad", like=[1])
def silu_grad(op: Any, dy: Any, x: Any) -> Any:
    """dy · d Silu(x)/dx = dy · s · (1 + x · (1 − s)) for s = sigmoid(x)."""
    s = op.Sigmoid(x)
    return dy * (s * (1.0 + x * (1.0 - s)))


@composite("SoftmaxGrad", like=[1])
def softmax_grad(op: Any, dy: Any, y: Any, *, axis: int = -1) -> Any:
    """Adjoint of Softmax's input from its output y: y · (dy − Σ dy·y) along `axis`."""
    return y * (dy - op.ReduceSum(dy * y, [axis], keepdims=1))


@composite("LogSoftmaxGrad", like=[1])
def log_softmax_grad(op: Any, dy: Any, y: Any, *, axis: int = -1) -> Any:
    """Adjoint of LogSoftmax's input from its output y: dy − exp(y) · Σ dy along `axis`."""
    return dy - op.Exp(y) * op.ReduceSum(dy, [axis], keepdims=1)


@composite("DropoutGrad", like=[0])
def dropout_grad(op: Any, dy: Any, mask: Any, *, ratio: float = 0.5) -> Any:
    """dy where the mask kept the element, scaled by 1 / (1 − ratio), else zero."""
    return op.Where(mask, dy * (1 / (1 - ratio)), 0.0)
