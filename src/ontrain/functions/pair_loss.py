"""Losses of pairs of numbers, element by element, and their gradients. Both operands have one shape."""

from __future__ import annotations

import numpy as np

from ontrain.functions.registry import composite
from ontrain.graph import Builder
from ontrain.operators import Value

__all__: list[str] = []


@composite("SquaredError", like=[0])
def squared_error(op: Builder, x: Value, target: Value) -> Value:
    """(x − target)². Source: torch.nn.functional.mse_loss without its mean."""
    d = x - target
    return d * d


@composite("SquaredErrorGrad", like=[1])
def squared_error_grad(op: Builder, dy: Value, x: Value, target: Value) -> Value:
    """dy · 2 · (x − target); dy may be one number."""
    return dy * (2.0 * (x - target))


@composite("Huber", like=[0])
def huber(op: Builder, x: Value, target: Value, *, delta: float = 1.0, unit_slope: int = 0) -> Value:
    """d² / 2 for d = x − target where |d| ≤ delta, else delta · (|d| − delta / 2); divided by delta with `unit_slope`.

    It is c · (d − c / 2) for c = d within ±delta.
    Source: torch.nn.functional.huber_loss without its mean, and with `unit_slope` smooth_l1_loss.
    """
    d = x - target
    c = op.Clip(d, -delta, delta)
    loss = c * (d - 0.5 * c)
    return loss * (1 / delta) if unit_slope else loss


@composite("HuberGrad", like=[1])
def huber_grad(
    op: Builder, dy: Value, x: Value, target: Value, *, delta: float = 1.0, unit_slope: int = 0
) -> Value:  # fmt: skip
    """dy · d for d = x − target within ±delta, divided by delta with `unit_slope`; dy may be one number."""
    c = op.Clip(x - target, -delta, delta)
    return dy * (c * (1 / delta)) if unit_slope else dy * c


@composite("SigmoidCrossEntropy", like=[0])
def sigmoid_cross_entropy(op: Builder, x: Value, target: Value) -> Value:
    """−target · log σ(x) − (1 − target) · log(1 − σ(x)).

    Source: torch.nn.functional.binary_cross_entropy_with_logits without its mean.
    """
    # −log σ(x) = Softplus(−x), which does not overflow and whose derivative at 0 is right.
    return (1.0 - target) * x + op.Softplus(op.Neg(x))


@composite("SigmoidCrossEntropyGrad", like=[1])
def sigmoid_cross_entropy_grad(op: Builder, dy: Value, x: Value, target: Value) -> Value:
    """dy · (σ(x) − target); dy may be one number."""
    return dy * (op.Sigmoid(x) - target)


_FLOOR = -100.0
"""What torch takes for the logarithm of a probability at or near zero."""
_LEAST = float(np.float32(1e-12))
"""What torch divides by at least; a number of single precision for all dtypes."""


@composite("BinaryCrossEntropy", like=[0])
def binary_cross_entropy(op: Builder, x: Value, target: Value) -> Value:
    """−target · log x − (1 − target) · log(1 − x) of probabilities x, each logarithm at least −100.

    Source: torch.nn.functional.binary_cross_entropy without its mean.
    """
    return op.Neg(target * op.Max(op.Log(x), _FLOOR) + (1.0 - target) * op.Max(op.Log(1.0 - x), _FLOOR))


@composite("BinaryCrossEntropyGrad", like=[1])
def binary_cross_entropy_grad(op: Builder, dy: Value, x: Value, target: Value) -> Value:
    """dy · (x − target) / (x · (1 − x)), the denominator at least 1e-12; dy may be one number.

    So the gradient is finite for probabilities that are exactly 0 or 1, as torch's is.
    """
    return dy * (x - target) / op.Max((1.0 - x) * x, _LEAST)
