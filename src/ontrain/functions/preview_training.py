"""The optimizers of the standard's preview of training, in standard operators.

An update takes a learning rate, a count of updates, and then tensors, their gradients and their state, each in a row.
Source: https://onnx.ai/onnx/operators/#ai-onnx-preview-training
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir

from ontrain.functions.optimizer import decimal
from ontrain.functions.registry import composite
from ontrain.graph import Builder
from ontrain.operators import Value

__all__: list[str] = []

PREVIEW = "ai.onnx.preview.training"


def _like(first: int, rows: int) -> Callable[..., list[tuple[ir.DataType, ir.Shape]]]:
    """Outputs are like the operands from `first` on without their second row, the gradients."""

    def types(inputs: list[Any], **_: object) -> list[tuple[ir.DataType, ir.Shape]]:
        count = (len(inputs) - first) // rows
        rest = [*inputs[first : first + count], *inputs[first + 2 * count :]]
        return [(value.dtype, value.shape) for value in rest]

    return types


def _columns(operands: tuple[Any, ...], rows: int) -> list[tuple[Any, ...]]:
    """What belongs to each tensor: it, its gradient and its state."""
    count = len(operands) // rows
    return [operands[i::count] for i in range(count)]


def _in_rows(columns: list[tuple[Any, ...]]) -> list[Value]:
    return [value for row in zip(*columns, strict=True) for value in row]


@composite("Adagrad", domain=PREVIEW, infer=_like(2, 3))
def adagrad(
    op: Builder, rate: Value, count: Value, *operands: Value,
    decay_factor: float = 0.0, epsilon: float = 0.0, norm_coefficient: float = 0.0,
) -> list[Value]:  # fmt: skip
    """x − R / (1 + T · decay) · g / (√h + ε), with the sum h of the squares of all gradients g."""
    rate = rate / (op.Cast(count, to=rate.dtype) * decimal(decay_factor) + 1.0)
    columns = []
    for x, gradient, squares in _columns(operands, 3):
        g = decimal(norm_coefficient) * x + gradient
        total = squares + g * g
        columns.append((x - op.Cast(rate, to=x.dtype) * g / (op.Sqrt(total) + epsilon), total))
    return _in_rows(columns)


@composite("Adam", domain=PREVIEW, infer=_like(2, 4))
def adam(
    op: Builder, rate: Value, count: Value, *operands: Value,
    alpha: float = 0.9, beta: float = 0.999, epsilon: float = 0.0, norm_coefficient: float = 0.0,
    norm_coefficient_post: float = 0.0,
) -> list[Value]:  # fmt: skip
    """Adam; the bias of the moments is corrected where T is above zero."""
    first, second = decimal(alpha), decimal(beta)
    times = op.Cast(count, to=rate.dtype)
    correction = op.Sqrt(1.0 - op.Pow(op.const(second, rate.dtype), times)) / (
        1.0 - op.Pow(op.const(first, rate.dtype), times)
    )
    rate = op.Where(op.Greater(count, 0), rate * correction, rate)
    columns = []
    for x, gradient, mean, square in _columns(operands, 4):
        g = decimal(norm_coefficient) * x + gradient
        mean = first * mean + (1.0 - first) * g
        square = second * square + (1.0 - second) * (g * g)
        moved = x - op.Cast(rate, to=x.dtype) * mean / (op.Sqrt(square) + epsilon)
        columns.append((moved * (1.0 - decimal(norm_coefficient_post)), mean, square))
    return _in_rows(columns)


@composite("Momentum", domain=PREVIEW, infer=_like(2, 3))
def momentum(
    op: Builder, rate: Value, count: Value, *operands: Value,
    alpha: float = 0.0, beta: float = 0.0, mode: str = "standard", norm_coefficient: float = 0.0,
) -> list[Value]:  # fmt: skip
    """Stochastic gradient descent with momentum, Nesterov's if `mode` says so; the first gradient counts whole."""
    share = op.Where(op.Greater(count, 0), op.const(decimal(beta), rate.dtype), op.const(1.0, rate.dtype))
    columns = []
    for x, gradient, velocity in _columns(operands, 3):
        g = decimal(norm_coefficient) * x + gradient
        velocity = decimal(alpha) * velocity + op.Cast(share, to=x.dtype) * g
        step = g + decimal(alpha) * velocity if mode == "nesterov" else velocity
        columns.append((x - op.Cast(rate, to=x.dtype) * step, velocity))
    return _in_rows(columns)
