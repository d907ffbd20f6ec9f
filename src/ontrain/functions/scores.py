"""What becomes of a classical model's scores, in standard operators: transforms, and the scores of a second class.

Source: https://onnx.ai/onnx/operators/index_classes.html; where it is silent, onnxruntime.
"""

from __future__ import annotations

import math

from ontrain.graph import Builder
from ontrain.operators import Value

__all__ = ["of_two_classes", "transformed"]

_NEAR_ZERO = 1e-7
_WINITZKI = 0.147


def transformed(op: Builder, scores: Value, transform: str) -> Value:
    """Return scores [rows, classes] after a `post_transform`."""
    if transform == "SOFTMAX":
        return op.Softmax(scores, axis=-1)
    if transform == "LOGISTIC":
        return op.Sigmoid(scores)
    if transform == "SOFTMAX_ZERO":
        largest = op.ReduceMax(scores, [-1], keepdims=1)
        zero = op.LessOrEqual(op.Abs(scores), _NEAR_ZERO)
        powers = op.Where(zero, 0.0, op.Exp(scores - largest))
        return op.Where(zero, scores * op.Exp(-largest), powers) / op.ReduceSum(powers, [-1], keepdims=1)
    if transform == "PROBIT":
        return math.sqrt(2) * _inverse_error_function(op, 2 * scores - 1)
    return scores


def of_two_classes(op: Builder, score: Value, transform: str) -> Value:
    """Return the scores [rows, 2] of both classes from the score [rows, 1] of the second."""
    if transform == "LOGISTIC":
        return op.Sigmoid(op.Concat(-score, score, axis=-1))
    both = op.Concat(1 - score, score, axis=-1)
    return transformed(op, both, transform) if transform == "PROBIT" else both


def _inverse_error_function(op: Builder, x: Value) -> Value:
    """Winitzki's approximation, and two steps of Newton's method."""
    log = op.Log(1 - x * x)
    half = 2 / (math.pi * _WINITZKI) + 0.5 * log
    y = op.Sign(x) * op.Sqrt(op.Sqrt(half * half - log / _WINITZKI) - half)
    inside = op.Less(op.Abs(x), 1.0)
    y_inside = op.Where(inside, y, 0.0)
    for _ in range(2):
        slope = op.Exp(-(y_inside * y_inside)) * (2 / math.sqrt(math.pi))
        y_inside = y_inside - (op.Erf(y_inside) - op.Where(inside, x, 0.0)) / slope
    return op.Where(inside, y_inside, y)
