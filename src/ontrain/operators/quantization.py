"""Whole numbers in the place of reals."""

from __future__ import annotations

from ontrain.operators.record import DOMAIN, ELEMENTWISE, Axis, Outrun, Stock, define

__all__: list[str] = []

ROUNDS = "it rounds to whole numbers; train through a rounding that passes its gradient straight on"
WHOLE = "its results are whole numbers"

define("ConvInteger", zero_gradient=WHOLE, stock=Stock.COMPARED, outrun=Outrun.ALIKE)
define("DequantizeLinear", weightless=(1, 2), axis=Axis.ANY, stock=Stock.KERNEL)
define("DynamicQuantizeLinear", stock=Stock.KERNEL, outrun=Outrun.BUT_TIES)
define("MatMulInteger", zero_gradient=WHOLE, stock=Stock.COMPARED, outrun=Outrun.ALIKE)
define("QLinearConv", zero_gradient=ROUNDS, stock=Stock.COMPARED, outrun=Outrun.BUT_TIES)
define("QLinearMatMul", zero_gradient=ROUNDS, stock=Stock.COMPARED, outrun=Outrun.BUT_TIES)
define(
    "QuantizeLinear", weightless=(1, 2), axis=Axis.ANY, zero_gradient=ROUNDS, stock=Stock.KERNEL, outrun=Outrun.BUT_TIES
)
define("ReplaceNan", ELEMENTWISE, overwrites=(0,), domain=DOMAIN)
