"""Comparisons, truth values and bits."""

from __future__ import annotations

import onnx_ir as ir

from ontrain.operators.record import ELEMENTWISE, POINTWISE, WHEREVER, Smallest, Stock, define

__all__: list[str] = []

define("And", POINTWISE, evaluate=lambda a, x, y: x & y, zero_gradient=WHEREVER, stock=Stock.KERNEL)
define(
    "BitCast",
    no_gradient="it reads the bits of a number as another type",
    smallest=Smallest({"to": ir.DataType.INT32.value}),
)
define(
    "BitShift",
    ELEMENTWISE,
    zero_gradient=WHEREVER,
    smallest=Smallest({"direction": "LEFT"}, {"T": "tensor(uint8)"}),
    stock=Stock.COMPARED,
)
define("BitwiseAnd", POINTWISE, zero_gradient=WHEREVER, stock=Stock.COMPARED)
define("BitwiseNot", POINTWISE, zero_gradient=WHEREVER, stock=Stock.COMPARED)
define("BitwiseOr", POINTWISE, zero_gradient=WHEREVER, stock=Stock.COMPARED)
define("BitwiseXor", POINTWISE, zero_gradient=WHEREVER, stock=Stock.COMPARED)
define("Equal", POINTWISE, evaluate=lambda a, x, y: x == y, zero_gradient=WHEREVER, stock=Stock.KERNEL)
define("Greater", POINTWISE, evaluate=lambda a, x, y: x > y, zero_gradient=WHEREVER, stock=Stock.KERNEL)
define("GreaterOrEqual", POINTWISE, evaluate=lambda a, x, y: x >= y, zero_gradient=WHEREVER, stock=Stock.KERNEL)
define("IsInf", ELEMENTWISE, zero_gradient=WHEREVER, stock=Stock.COMPARED)
define("IsNaN", ELEMENTWISE, zero_gradient=WHEREVER, stock=Stock.KERNEL)
define("Less", POINTWISE, evaluate=lambda a, x, y: x < y, zero_gradient=WHEREVER, stock=Stock.KERNEL)
define("LessOrEqual", POINTWISE, evaluate=lambda a, x, y: x <= y, zero_gradient=WHEREVER, stock=Stock.KERNEL)
define("Not", POINTWISE, evaluate=lambda a, x: ~x, zero_gradient=WHEREVER, stock=Stock.KERNEL)
define("Or", POINTWISE, evaluate=lambda a, x, y: x | y, zero_gradient=WHEREVER, stock=Stock.KERNEL)
define("Xor", POINTWISE, zero_gradient=WHEREVER, stock=Stock.COMPARED)
