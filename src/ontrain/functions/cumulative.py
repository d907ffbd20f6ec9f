"""Running extrema, and running sums of exponentials."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.functions.registry import composite
from ontrain.graph import Builder
from ontrain.operators import Value

__all__: list[str] = []


def _rows(op: Builder, x: Value, axis: int) -> Value:
    """x with the axis at the end."""
    perm = [*(d for d in range(len(x.shape)) if d != axis), axis]
    return x if perm == sorted(perm) else op.Transpose(x, perm=perm)


def _columns(op: Builder, x: Value, axis: int) -> Value:
    """The inverse of `_rows`."""
    last = len(x.shape) - 1
    perm = [*range(axis), last, *range(axis, last)]
    return x if perm == sorted(perm) else op.Transpose(x, perm=perm)


def _earlier(op: Builder, rows: Value) -> Value:
    """For places [n] of rows [..., n] whether the second comes no later than the first: [n, n]."""
    size = op.Squeeze(op.Shape(rows, start=-1), [0])
    places = op.Range(0, size, 1)
    return op.LessOrEqual(op.Unsqueeze(places, [0]), op.Unsqueeze(places, [1]))


def _extremum_types(inputs: list[Any], **_: object) -> list[tuple[ir.DataType, ir.Shape]]:
    return [(inputs[0].dtype, inputs[0].shape), (ir.DataType.INT64, inputs[0].shape)]


def _last(dtype: ir.DataType, least: bool) -> float | int:
    """The least or greatest number of a dtype, to which any other is preferred."""
    if dtype.is_floating_point():
        return -np.inf if least else np.inf
    bounds = np.iinfo(dtype.numpy())
    return int(bounds.min if least else bounds.max)


@composite("RunningExtremum", infer=_extremum_types)
def running_extremum(op: Builder, x: Value, *, axis: int = 0, largest: int = 1) -> tuple[Value, Value]:
    """The greatest or least element so far along an axis that counts from the first, and its place, int64.

    Of equal ones the last is chosen. Source: torch.cummax and torch.cummin. On [n, n] places, a row for each prefix.
    """
    rows = _rows(op, x, axis)
    prefixes = op.Where(_earlier(op, rows), op.Unsqueeze(rows, [-2]), _last(x.dtype, bool(largest)))
    places = (op.ArgMax if largest else op.ArgMin)(prefixes, axis=-1, keepdims=0, select_last_index=1)
    # A prefix of nothing but the last of all numbers equals what stands behind it.
    places = op.Min(places, op.Range(0, op.Squeeze(op.Shape(rows, start=-1), [0]), 1))
    places = _columns(op, places, axis)
    return op.GatherElements(x, places, axis=axis), places


@composite("LogCumSumExp", like=[0])
def log_cumulative_sum_exp(op: Builder, x: Value, *, axis: int = 0) -> Value:
    """The logarithm of the running sum of exponentials along an axis that counts from the first.

    Source: torch.logcumsumexp. On [n, n] places, a row for each prefix, whose largest element is taken out.
    """
    rows = _rows(op, x, axis)
    prefixes = op.Where(_earlier(op, rows), op.Unsqueeze(rows, [-2]), -np.inf)
    top = op.composite("Detach", op.ReduceMax(prefixes, [-1], keepdims=1))
    top = op.Where(op.IsInf(top), 0.0, top)
    total = op.Log(op.ReduceSum(op.Exp(prefixes - top), [-1], keepdims=1)) + top
    return _columns(op, op.Squeeze(total, [-1]), axis)


@composite("LogCumSumExpGrad", like=[1])
def log_cumulative_sum_exp_grad(op: Builder, dy: Value, x: Value, y: Value, *, axis: int = 0) -> Value:
    """Adjoint of x from the result y: Σ dy_i · exp(x_j − y_i) over all i from j on."""
    dy, x, y = (_rows(op, v, axis) for v in (dy, x, y))
    shares = op.Exp(op.Unsqueeze(x, [-2]) - op.Unsqueeze(y, [-1]))
    terms = op.Where(_earlier(op, x), op.Unsqueeze(dy, [-1]) * shares, 0.0)
    return _columns(op, op.ReduceSum(terms, [-2], keepdims=0), axis)
