"""Sizes as nodes of a graph."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.errors import CaptureError
from ontrain.graph.builder import Builder
from ontrain.operators import Value
from ontrain.sizes import Call, Number, Size

__all__ = ["SizeArithmetic", "dimension_of_inputs"]


class SizeArithmetic:
    """Appends what computes sizes; each size, product, call and symbol once.

    Args:
        locate: appends what holds a symbol's number, as a vector of one element, and returns it.
    """

    def __init__(self, locate: Callable[[Builder, str], Value]) -> None:
        self._locate = locate
        self._values: dict[Hashable, Value] = {}

    def inside(self, locate: Callable[[Builder, str], Value]) -> SizeArithmetic:
        """Return the same for a graph inside: what is computed there is not known out here."""
        arithmetic = SizeArithmetic(locate)
        arithmetic._values = dict(self._values)
        return arithmetic

    def value(self, op: Builder, size: Size) -> Value:
        """Return the size as a vector of one element: int64, double for what may be a fraction, bool for a condition.

        Raises:
            CaptureError: a function in it has no translation.
        """
        if size not in self._values:
            terms = [self._term(op, factors, c) for factors, c in size.terms]
            self._values[size] = _chain(op, "Add", terms) if terms else op.const(np.zeros(1, np.int64))
        return self._values[size]

    def _term(self, op: Builder, factors: tuple[str | Call, ...], coefficient: Number) -> Value:
        if factors and factors not in self._values:
            self._values[factors] = _chain(op, "Mul", [self._factor(op, factor) for factor in factors])
        product = self._values[factors] if factors else None
        if coefficient == 1 and product is not None:
            return product
        whole = isinstance(coefficient, int)
        number = op.const(np.array([coefficient if whole else float(coefficient)], np.int64 if whole else np.float64))
        return number if product is None else _chain(op, "Mul", [product, number])

    def _factor(self, op: Builder, factor: str | Call) -> Value:
        if factor not in self._values:
            if isinstance(factor, str):
                self._values[factor] = self._locate(op, factor)
            elif factor.name not in _FUNCTIONS:
                raise CaptureError(f"the size {Size.call(factor.name, *factor.arguments)} has no translation")
            else:
                arguments = [self.value(op, argument) for argument in factor.arguments]
                self._values[factor] = _FUNCTIONS[factor.name](op, *_of_one_type(op, arguments))
        return self._values[factor]


def dimension_of_inputs(op: Builder, symbol: str) -> Value:
    """Return a dimension as a vector of one element, from the first input of the graph that has it."""
    value, axis = next(
        (value, axis)
        for value in op.graph.inputs
        for axis, dim in enumerate(value.shape or ())
        if not isinstance(dim, int) and dim.value == symbol
    )
    shape: Value = op.Shape(value, start=axis, end=axis + 1)
    return shape


def _of_one_type(op: Builder, values: list[Value]) -> list[Value]:
    if all(value.dtype == values[0].dtype for value in values):
        return values
    return [_float(op, value) for value in values]


def _chain(op: Builder, op_type: str, values: list[Value]) -> Value:
    first, *rest = _of_one_type(op, values)
    for value in rest:
        first = op.call("", op_type, [first, value], {})
    return first


def _floor_div(op: Builder, a: Value, b: Value) -> Value:
    # Integer division cuts towards zero, torch's floors: take off the remainder, which has the divisor's sign.
    whole = op.Div(op.Sub(a, _mod(op, a, b)), b)
    return whole if a.dtype == ir.DataType.INT64 else op.Round(whole)


def _mod(op: Builder, a: Value, b: Value) -> Value:
    """The remainder with the divisor's sign, as Python's; of floats, `Mod` gives the one with the dividend's."""
    if a.dtype == ir.DataType.INT64:
        return op.Mod(a, b)
    rest = op.Mod(a, b, fmod=1)
    return op.Where(op.Less(op.Mul(rest, b), 0.0), op.Add(rest, b), rest)


def _float(op: Builder, x: Value) -> Value:
    """A Python float has double precision: 44,100 times a second of audio has no room in a single one."""
    return x if x.dtype == ir.DataType.DOUBLE else op.Cast(x, to=ir.DataType.DOUBLE)


def _whole(rounding: str | None = None) -> Callable[..., Any]:
    def make(op: Builder, x: Value) -> Value:
        return op.Cast(
            op.call("", rounding, [x], {}) if rounding and x.dtype != ir.DataType.INT64 else x, to=ir.DataType.INT64
        )

    return make


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "//": _floor_div,
    "%": _mod,
    "/": lambda op, a, b: op.Div(_float(op, a), _float(op, b)),
    "**": lambda op, base, exponent: op.Pow(_float(op, base), _float(op, exponent)),
    "max": lambda op, *values: _chain(op, "Max", [*values]),
    "min": lambda op, *values: _chain(op, "Min", [*values]),
    "==": lambda op, a, b: op.Equal(a, b),
    "!=": lambda op, a, b: op.Not(op.Equal(a, b)),
    ">": lambda op, a, b: op.Greater(a, b),
    ">=": lambda op, a, b: op.GreaterOrEqual(a, b),
    "<": lambda op, a, b: op.Less(a, b),
    "<=": lambda op, a, b: op.LessOrEqual(a, b),
    "float": _float,
    "trunc": _whole(),
    "floor": _whole("Floor"),
    "ceil": _whole("Ceil"),
    "round": _whole("Round"),
    "inf": lambda op: op.const(np.array([np.inf])),
    "sqrt": lambda op, x: op.Sqrt(_float(op, x)),
}
