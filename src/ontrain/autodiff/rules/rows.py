"""Rows packed together and put back: each is the other's adjoint, as no row comes twice."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from ontrain.autodiff.registry import Op, gradient, zero_gradient
from ontrain.graph import DOMAIN, static_dims

__all__: list[str] = []

zero_gradient("SelectRows", domain=DOMAIN, reason="it makes indices out of a condition")


@gradient("PackRows", domain=DOMAIN)
def pack_rows(op: Op, dy: ir.Value, x: ir.Value, indices: ir.Value) -> Any:
    """dy at the rows that were taken, zeros at the others."""
    return op.composite("UnpackRows", dy, indices, rows=static_dims(x)[0]), None


@gradient("UnpackRows", domain=DOMAIN)
def unpack_rows(op: Op, dy: ir.Value, x: ir.Value, indices: ir.Value, *, rows: int) -> Any:
    """The rows of dy that x came to lie in."""
    return op.composite("PackRows", dy, indices), None


@gradient("SpreadRows", domain=DOMAIN)
def spread_rows(op: Op, dy: ir.Value, x: ir.Value, places: ir.Value, indices: ir.Value) -> Any:
    """As UnpackRows': what reaches the copies of the first row is nothing, and is not added up."""
    return op.composite("PackRows", dy, indices), None, None
