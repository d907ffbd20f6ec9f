"""Marks in a graph: detached and inspected values, and backwards of the user's own."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ontrain.operators.emit import Value
from ontrain.operators.gradients import Adjoints, Op, gradient
from ontrain.operators.record import DOMAIN, ELEMENTWISE, Precision, View, define

__all__: list[str] = []


def _operands(through: ir.Node) -> Sequence[ir.Value | None]:
    """The x of (y…, adjoint…, x…, gradient…)."""
    behind = through.inputs[2 * len(through.outputs) :]
    return behind[: len(behind) // 2]


def _adjoints(through: ir.Node) -> Sequence[ir.Value | None]:
    """The stand-ins among its operands."""
    results = len(through.outputs)
    return through.inputs[results : 2 * results]


define("ConstantIn", ELEMENTWISE, domain=DOMAIN, precision=Precision.FOLLOWS)

define("Adjoint", domain=DOMAIN, distinct=True, zero_gradient="it stands for an adjoint, and not for its value")
define(
    "Detach",
    ELEMENTWISE,
    domain=DOMAIN,
    precision=Precision.FOLLOWS,
    view=View.SAME,
    zero_gradient="that is what it is for",
)
define("Inspect", domain=DOMAIN, view=View.SAME)
define("Revalued", ELEMENTWISE, domain=DOMAIN, precision=Precision.FOLLOWS, linked=lambda node: node.inputs[:1])
define("ScaleGrad", domain=DOMAIN, view=View.SCALED)
define("Through", domain=DOMAIN, view=View.SAME, linked=_operands, adjoints=_adjoints)


@gradient("Revalued", domain=DOMAIN)
def revalued(op: Op, dy: Value, x: Value, new: Value) -> Adjoints:
    """dy by x, nothing by what was written."""
    return dy, None


@gradient("ConstantIn", domain=DOMAIN)
def constant_in(op: Op, dy: Value, y: Value, *xs: Value) -> Adjoints:
    """dy by y, whose derivatives by the others are zero."""
    return dy, *[None] * len(xs)
