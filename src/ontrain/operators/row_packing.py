"""Rows packed together and put back: each is the other's adjoint, as no row comes twice."""

from __future__ import annotations

from ontrain.operators.emit import Value
from ontrain.operators.gradients import Adjoints, Op, gradient
from ontrain.operators.record import DOMAIN, Precision, define
from ontrain.operators.shapes import static_dims

__all__: list[str] = []

define("SelectRows", domain=DOMAIN, zero_gradient="it makes indices out of a condition")


define("PackRows", domain=DOMAIN, precision=Precision.FOLLOWS, keeps_values=True)


@gradient("PackRows", domain=DOMAIN)
def pack_rows(op: Op, dy: Value, x: Value, indices: Value) -> Adjoints:
    """dy at the rows that were taken, zeros at the others."""
    return op.composite("UnpackRows", dy, indices, rows=static_dims(x)[0]), None


define("UnpackRows", domain=DOMAIN, precision=Precision.FOLLOWS)


@gradient("UnpackRows", domain=DOMAIN)
def unpack_rows(op: Op, dy: Value, x: Value, indices: Value, *, rows: int) -> Adjoints:
    """The rows of dy that x came to lie in."""
    return op.composite("PackRows", dy, indices), None


define("SpreadRows", domain=DOMAIN)


@gradient("SpreadRows", domain=DOMAIN)
def spread_rows(op: Op, dy: Value, x: Value, places: Value, indices: Value) -> Adjoints:
    """As UnpackRows': what reaches the copies of the first row is nothing, and is not added up."""
    return op.composite("PackRows", dy, indices), None, None
