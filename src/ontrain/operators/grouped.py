"""Products of groups of rows with a matrix each, as mixtures of experts make them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import onnx_ir as ir

from ontrain.operators.agreement import shape_of, size_of
from ontrain.operators.emit import Value
from ontrain.operators.gradients import Adjoints, Op, gradient
from ontrain.operators.matmul import transposed
from ontrain.operators.record import DOMAIN, Precision, define

__all__: list[str] = []


def _matmul(node: ir.Node, shapes: Sequence[tuple[int, ...]]) -> Iterator[tuple[int, int]]:
    x, w, ends = shapes
    yield x[1], w[1]
    yield w[0], ends[0]


def _outer(node: ir.Node, shapes: Sequence[tuple[int, ...]]) -> Iterator[tuple[int, int]]:
    x, y, _ = shapes
    yield x[0], y[0]


define(
    "GroupedMatMul", domain=DOMAIN, precision=Precision.HALF, weightless=(2,), asks_device=True, agreeing=_matmul,
    flops=lambda node: 2 * size_of(node.outputs[0]) * shape_of(node, 0)[1],
)  # fmt: skip
define(
    "GroupedOuter", domain=DOMAIN, precision=Precision.HALF, weightless=(2,), asks_device=True, agreeing=_outer,
    flops=lambda node: 2 * math.prod(shape_of(node, 0)) * shape_of(node, 1)[1],
)  # fmt: skip


@gradient("GroupedMatMul", domain=DOMAIN)
def grouped_matmul(op: Op, dy: Value, x: Value, w: Value, ends: Value) -> Adjoints:
    """Dy wᵀ group by group, and GroupedOuter of x and dy, made in the order in which the matrices lie."""
    dx = op.composite("GroupedMatMul", dy, transposed(op, w), ends) if op.wanted[0] else None
    if not op.wanted[1]:
        return dx, None, None
    maker = w.producer()
    if maker is not None and maker.op_type == "Transpose" and not maker.domain:
        return dx, transposed(op, op.composite("GroupedOuter", dy, x, ends)), None
    return dx, op.composite("GroupedOuter", x, dy, ends), None


@gradient("GroupedOuter", domain=DOMAIN)
def grouped_outer(op: Op, dy: Value, x: Value, y: Value, ends: Value) -> Adjoints:
    """Y dyᵀ and x dy, group by group."""
    dx = op.composite("GroupedMatMul", y, transposed(op, dy), ends) if op.wanted[0] else None
    return dx, op.composite("GroupedMatMul", x, dy, ends) if op.wanted[1] else None, None
