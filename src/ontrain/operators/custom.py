"""Marks in a graph: detached and inspected values, and backwards of the user's own."""

from __future__ import annotations

from ontrain.operators.emit import Value
from ontrain.operators.gradients import Adjoints, Op, gradient
from ontrain.operators.record import DOMAIN, ELEMENTWISE, Precision, View, define

__all__: list[str] = []

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
define("Revalued", ELEMENTWISE, domain=DOMAIN, precision=Precision.FOLLOWS)
define("ScaleGrad", domain=DOMAIN, view=View.SCALED)
define("Through", domain=DOMAIN, view=View.SAME)


@gradient("Revalued", domain=DOMAIN)
def revalued(op: Op, dy: Value, x: Value, new: Value) -> Adjoints:
    """dy by x, nothing by what was written."""
    return dy, None
