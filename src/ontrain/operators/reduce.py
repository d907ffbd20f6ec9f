"""Reductions, cumulative sums and top-k."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ontrain.operators.emit import Value
from ontrain.operators.gradients import Adjoints, Op, gradient
from ontrain.operators.matmul import transposed
from ontrain.operators.record import DOMAIN, WHEREVER, Outrun, Precision, Rows, Stock, define
from ontrain.operators.shapes import static_dims

__all__: list[str] = []

define("ArgMax", reduces=True, zero_gradient=WHEREVER, stock=Stock.KERNEL)
define("ArgMin", reduces=True, zero_gradient=WHEREVER, stock=Stock.COMPARED)
define("CumProd", settings=(1,), singular=True)
define("CumProdGrad", domain=DOMAIN)


@gradient("CumProd")
def cumulative_product(op: Op, dy: Value, x: Value, axis: Value, *, exclusive: int, reverse: int) -> Any:
    """The composite CumProdGrad; through the body where an element does not count for itself."""
    place = op.constant(1)
    if exclusive or place is None or not all(isinstance(size, int) for size in x.shape or [None]):
        return NotImplemented
    axis_from_start = int(place.reshape(())) % len(static_dims(x))
    return op.composite("CumProdGrad", dy, x, op.outputs[0], axis=axis_from_start, reverse=reverse), None


def _axes(op: Op, x: Value, noop_with_empty_axes: int) -> list[int]:
    """The axes that the node reduces, from its second input."""
    rank, axes = len(static_dims(x)), op.constant(1)
    if axes is not None and axes.size:
        return sorted(int(a) % rank for a in axes)
    return [] if noop_with_empty_axes else list(range(rank))


Derivative = Callable[[Op, Value, Value, Value, list[int]], Value]
"""derivative(op, dy, x, y, axes) of a reduction; dy and y come with reduced axes kept as ones."""


def reduction(op_type: str) -> Callable[[Derivative], Derivative]:
    """Register the decorated function as the derivative of a reduction."""

    def register(derivative: Derivative) -> Derivative:
        def rule(
            op: Op, dy: Value, x: Value, axes: Value | None = None,
            *, keepdims: int, noop_with_empty_axes: int,
        ) -> Adjoints:  # fmt: skip
            over = _axes(op, x, noop_with_empty_axes)
            shape = [1 if i in over else d for i, d in enumerate(static_dims(x))]
            dx = derivative(op, op.reshaped(dy, shape), x, op.reshaped(op.outputs[0], shape), over)
            return dx if static_dims(dx) == static_dims(x) else op.Expand(dx, list(static_dims(x))), None

        gradient(op_type)(rule)
        return derivative

    return register


def simple(op_type: str, derivative: Callable[..., Any]) -> None:
    """Register a reduction by its derivative in x and y alone."""
    reduction(op_type)(lambda op, dy, x, y, axes: dy * derivative(op, x, y))


define("ReduceSum", settings=(1,), reduces=True, rows=Rows.REDUCED, stock=Stock.KERNEL)
reduction("ReduceSum")(lambda op, dy, x, y, axes: dy)
define("ReduceMean", settings=(1,), reduces=True, rows=Rows.REDUCED, stock=Stock.KERNEL)
reduction("ReduceMean")(lambda op, dy, x, y, axes: dy / math.prod(static_dims(x)[a] for a in axes))
define("ReduceL1", settings=(1,), reduces=True, rows=Rows.REDUCED, stock=Stock.COMPARED)
simple("ReduceL1", lambda op, x, y: op.Sign(x))
define("ReduceL2", settings=(1,), reduces=True, rows=Rows.REDUCED, stock=Stock.KERNEL, ahead_from=1 << 16)
simple("ReduceL2", lambda op, x, y: x / op.Where(op.Equal(y, 0.0), 1.0, y))
define(
    "ReduceLogSum", settings=(1,), reduces=True, singular=True, rows=Rows.REDUCED, stock=Stock.COMPARED,
    ahead_from=1 << 16,
)  # fmt: skip
simple("ReduceLogSum", lambda op, x, y: op.Exp(-y))
define("ReduceLogSumExp", settings=(1,), reduces=True, rows=Rows.REDUCED, stock=Stock.COMPARED, ahead_from=1 << 12)
simple("ReduceLogSumExp", lambda op, x, y: op.Exp(x - y))
define("ReduceSumSquare", settings=(1,), reduces=True, rows=Rows.REDUCED, stock=Stock.COMPARED, ahead_from=1 << 16)
simple("ReduceSumSquare", lambda op, x, y: 2 * x)


define("ReduceMax", settings=(1,), reduces=True, rows=Rows.REDUCED, stock=Stock.KERNEL, ahead_from=1 << 16)
define("ReduceMin", settings=(1,), reduces=True, rows=Rows.REDUCED, stock=Stock.KERNEL, ahead_from=1 << 16)


@reduction("ReduceMax")
@reduction("ReduceMin")
def extremum(op: Op, dy: Value, x: Value, y: Value, axes: list[int]) -> Value:
    """dy in equal shares to the elements that attain the extremum (torch.amax)."""
    if not axes:
        return dy
    hits = op.Cast(op.Equal(x, y), to=dy.dtype)
    return hits * (dy / op.ReduceSum(hits, axes, keepdims=1))


define("Extremum", domain=DOMAIN, precision=Precision.FOLLOWS, reduces=True)


@gradient("Extremum", domain=DOMAIN)
def chosen_extremum(op: Op, dy: Value | None, x: Value, *, axis: int, keepdims: int, **_: object) -> Adjoints:
    """dy at the place that was chosen, zero elsewhere."""
    if dy is None:
        return None
    places = op.saved(1)
    if not keepdims:
        dy, places = (op.Unsqueeze(v, [axis]) for v in (dy, places))
    zeros = op.Expand(op.const(0.0, dy.dtype), list(static_dims(x)))
    return op.ScatterElements(zeros, places, dy, axis=axis)


define("OrderPlace", domain=DOMAIN, zero_gradient=WHEREVER)
define("MedianPlace", domain=DOMAIN, zero_gradient=WHEREVER)

define("RunningExtremum", domain=DOMAIN, precision=Precision.FOLLOWS)


@gradient("RunningExtremum", domain=DOMAIN)
def running_extremum(op: Op, dy: Value | None, x: Value, *, axis: int, **_: object) -> Adjoints:
    """dy added up at the places that were chosen."""
    if dy is None:
        return None
    zeros = op.Expand(op.const(0.0, dy.dtype), list(static_dims(x)))
    return op.ScatterElements(zeros, op.saved(1), dy, axis=axis, reduction="add")


define("Distances", domain=DOMAIN)
define("DistancesGrad", domain=DOMAIN)


@gradient("Distances", domain=DOMAIN)
def distances(op: Op, dy: Value, a: Value, b: Value) -> Adjoints:
    """The composite DistancesGrad, for the second operand of the distances seen from there."""
    y = op.outputs[0]
    da = op.composite("DistancesGrad", dy, a, b, y) if op.wanted[0] else None
    if not op.wanted[1]:
        return da, None
    return da, op.composite("DistancesGrad", transposed(op, dy), b, a, transposed(op, y))


define("LogCumSumExp", domain=DOMAIN)
define("LogCumSumExpGrad", domain=DOMAIN)


@gradient("LogCumSumExp", domain=DOMAIN)
def log_cumulative_sum_exp(op: Op, dy: Value, x: Value, *, axis: int) -> Adjoints:
    """The composite LogCumSumExpGrad."""
    return op.composite("LogCumSumExpGrad", dy, x, op.outputs[0], axis=axis)


define("ReduceProd", settings=(1,), reduces=True, rows=Rows.REDUCED, stock=Stock.KERNEL, ahead_from=1 << 12)
define("ReduceProdGrad", domain=DOMAIN)


@reduction("ReduceProd")
def product(op: Op, dy: Value, x: Value, y: Value, axes: list[int]) -> Value:
    """The composite ReduceProdGrad."""
    return op.composite("ReduceProdGrad", dy, x, y, axes=axes) if axes else dy


define("CumSum", settings=(1,), stock=Stock.COMPARED, ahead_from=1 << 13)


@gradient("CumSum")
def cumsum(op: Op, dy: Value, x: Value, axis: Value, *, exclusive: int, reverse: int) -> Adjoints:
    """The cumulative sum of dy from the other end."""
    return op.CumSum(dy, axis, exclusive=exclusive, reverse=1 - reverse), None


define(
    "TopK", settings=(1,), stock=Stock.COMPARED, outrun=Outrun.ALONE,
    alone=lambda node: node.attributes.get_int("sorted", 1) == 1,
)  # fmt: skip


@gradient("TopK")
def top_k(op: Op, dy: Value | None, x: Value, k: Value, *, axis: int, **_: object) -> Adjoints:
    """dy at the places that the values came from, zero elsewhere."""
    if dy is None:
        return None, None
    zeros = op.Expand(op.const(0.0, x.dtype), list(static_dims(x)))
    return op.ScatterElements(zeros, op.saved(1), dy, axis=axis), None
