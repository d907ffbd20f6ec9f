"""Sizes that vary: torch's symbolic integers under the user's dimension names, and their values in the graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
import sympy  # type: ignore[import-untyped]
import torch

from ontrain.errors import CaptureError
from ontrain.graph import Builder

__all__ = ["Sym", "Symbols"]


@dataclass(frozen=True)
class Sym:
    """A size that is known as an expression over named dimensions, "batch*sequence"."""

    expr: sympy.Expr


class Symbols:
    """The names of a program's symbols, and where in the graph each name's value is found."""

    def __init__(self) -> None:
        self._names: dict[sympy.Symbol, sympy.Symbol] = {}
        self._sources: dict[sympy.Symbol, tuple[ir.Value, int]] = {}
        self._numbers: dict[sympy.Symbol, ir.Value] = {}
        self._derived: set[sympy.Symbol] = set()
        self._made: dict[sympy.Expr, ir.Value] = {}

    def inside(self) -> Symbols:
        """Return the same for a graph inside: what is computed there is not known out here."""
        made = Symbols()
        for name, known in vars(self).items():
            setattr(made, name, known.copy())
        return made

    def name(self, size: torch.SymInt, wish: str) -> str:
        """Give the symbol of a dynamic input dimension the user's name; the first name given stays."""
        symbol = size.node.expr
        if isinstance(symbol, sympy.Symbol):
            self._names.setdefault(symbol, sympy.Symbol(wish, integer=True, positive=True))
        return str(self.convert(size).expr)  # type: ignore[union-attr]

    def locate(self, size: torch.SymInt, value: ir.Value, axis: int) -> None:
        """Record that a graph input's axis holds the value of this symbol."""
        expr = self.convert(size)
        if isinstance(expr, Sym) and isinstance(expr.expr, sympy.Symbol):
            self._sources.setdefault(expr.expr, (value, axis))

    def define(self, number: Any, value: ir.Value) -> None:
        """Record the vector of one element that holds a number taken out of a tensor."""
        self._numbers[number.node.expr] = value
        if _follows_from_shapes(value):
            self._derived.add(number.node.expr)

    def derive(self, val: torch.Tensor, value: ir.Value, arguments: Iterable[Any]) -> None:
        """Let sizes that torch does not know vary, if the numbers that make them follow from shapes alone.

        Args:
            val: the result as torch sees it, as of a slice between two numbers read out of tensors.
            value: the same in the graph.
            arguments: of the operator.
        """
        numbers = {symbol for one in arguments if isinstance(one, Sym) for symbol in one.expr.free_symbols}
        if not numbers & self._derived or not numbers <= self._known():
            return
        for axis, size in enumerate(val.shape):
            expr = size.node.expr if isinstance(size, torch.SymInt) else None
            if isinstance(expr, sympy.Symbol) and expr not in self._sources and expr not in self._names:
                self._sources[expr] = (value, axis)
                self._derived.add(expr)

    def _known(self) -> set[sympy.Symbol]:
        return {*self._names.values(), *self._derived}

    def convert(self, size: Any) -> int | float | bool | Sym:
        """Return a torch size as a number if it is one, else as an expression over the user's names."""
        if not isinstance(size, torch.SymInt | torch.SymFloat | torch.SymBool):
            return size  # type: ignore[no-any-return]
        expr = sympy.sympify(size.node.expr).xreplace(self._names)
        if expr.is_Boolean and expr in (sympy.true, sympy.false):
            return bool(expr)
        if expr.is_Number:
            return int(expr) if isinstance(size, torch.SymInt) else float(expr)
        return Sym(expr)

    def dims(self, shape: Any) -> list[int | str]:
        """Return a torch shape as numbers and names."""
        converted = [self.convert(size) for size in shape]
        for size in converted:
            if isinstance(size, Sym) and not size.expr.free_symbols <= self._known():
                raise _depends_on_data(size.expr)
        return [str(size.expr) if isinstance(size, Sym) else int(size) for size in converted]

    def emit(self, op: Builder, size: Sym) -> ir.Value:
        """Return the size as an int64 (or, for a quotient, float32) vector of one element."""
        return self._emit(op, size.expr)

    def _emit(self, op: Builder, expr: sympy.Expr) -> ir.Value:
        if expr not in self._made:
            self._made[expr] = self._make(op, expr)
        return self._made[expr]

    def _make(self, op: Builder, expr: sympy.Expr) -> ir.Value:
        if expr.is_Integer:
            return op.const(np.array([int(expr)], np.int64))
        if expr.is_Number:
            return op.const(np.array([float(expr)], np.float32))
        if isinstance(expr, sympy.Symbol):
            if expr in self._numbers:
                return self._numbers[expr]
            if expr not in self._sources:
                raise _depends_on_data(expr)
            value, axis = self._sources[expr]
            made: ir.Value = op.Shape(value, start=axis, end=axis + 1)
            return made
        make = _FUNCTIONS.get(type(expr).__name__)
        if make is None:
            raise CaptureError(f"the size {expr} uses {type(expr).__name__}, which has no translation")
        parts = [self._emit(op, part) for part in expr.args]
        if any(part.dtype != parts[0].dtype for part in parts):
            parts = [op.Cast(part, to=ir.DataType.FLOAT) for part in parts]
        result: ir.Value = make(op, *parts)
        return result


def _follows_from_shapes(value: ir.Value) -> bool:
    """Whether a value is made of constants and of the shapes of values, so that it is a number in every plan."""
    waiting, seen = [value], set()
    while waiting:
        one = waiting.pop()
        producer = one.producer()
        if one in seen or one.const_value is not None or (producer is not None and producer.op_type == "Shape"):
            continue
        if producer is None:
            return False
        seen.add(one)
        waiting += [v for v in producer.inputs if v is not None]
    return True


def _depends_on_data(expr: sympy.Expr) -> CaptureError:
    return CaptureError(
        f"a size ({expr}) depends on the data",
        reason="only sizes that follow from the shapes of the inputs can be in a graph",
        way_out="replace boolean indexing, nonzero or item() in forward by torch.where or masking",
    )


def _chain(op_type: str) -> Callable[..., Any]:
    def make(op: Any, first: Any, *rest: Any) -> Any:
        for one in rest:
            first = getattr(op, op_type)(first, one)
        return first

    return make


def _power(op: Any, base: Any, exponent: Any) -> Any:
    if exponent.const_value is not None and base.dtype == ir.DataType.INT64:
        count = int(exponent.const_value.numpy()[0])
        if count >= 1:
            return _chain("Mul")(op, *[base] * count)
    return op.Pow(op.Cast(base, to=ir.DataType.FLOAT), op.Cast(exponent, to=ir.DataType.FLOAT))


def _floor_div(op: Any, a: Any, b: Any) -> Any:
    # Integer division cuts towards zero, torch's floors: take off the remainder, which has the divisor's sign.
    return op.Div(op.Sub(a, op.Mod(a, b)), b) if a.dtype == ir.DataType.INT64 else op.Floor(op.Div(a, b))


def _true_div(op: Any, a: Any, b: Any) -> Any:
    return op.Div(op.Cast(a, to=ir.DataType.FLOAT), op.Cast(b, to=ir.DataType.FLOAT))


def _to(dtype: ir.DataType, rounding: str | None = None) -> Callable[..., Any]:
    def make(op: Any, x: Any, *_: Any) -> Any:
        return op.Cast(getattr(op, rounding)(x) if rounding and x.dtype != ir.DataType.INT64 else x, to=dtype)

    return make


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Add": _chain("Add"),
    "Mul": _chain("Mul"),
    "Max": _chain("Max"),
    "Equality": lambda op, a, b: op.Equal(a, b),
    "Unequality": lambda op, a, b: op.Not(op.Equal(a, b)),
    "StrictGreaterThan": lambda op, a, b: op.Greater(a, b),
    "GreaterThan": lambda op, a, b: op.GreaterOrEqual(a, b),
    "StrictLessThan": lambda op, a, b: op.Less(a, b),
    "LessThan": lambda op, a, b: op.LessOrEqual(a, b),
    "Min": _chain("Min"),
    "Pow": _power,
    "PowByNatural": _power,
    "FloorDiv": _floor_div,
    "CleanDiv": _floor_div,
    "Mod": lambda op, a, b: op.Mod(a, b),
    "PythonMod": lambda op, a, b: op.Mod(a, b),
    "CeilDiv": lambda op, a, b: op.Neg(_floor_div(op, op.Neg(a), b)),
    "IntTrueDiv": _true_div,
    "FloatTrueDiv": _true_div,
    "ToFloat": _to(ir.DataType.FLOAT),
    "TruncToInt": _to(ir.DataType.INT64),
    "FloorToInt": _to(ir.DataType.INT64, "Floor"),
    "CeilToInt": _to(ir.DataType.INT64, "Ceil"),
    "RoundToInt": _to(ir.DataType.INT64, "Round"),
    "OpaqueUnaryFn_sqrt": lambda op, x: op.Sqrt(op.Cast(x, to=ir.DataType.FLOAT)),
}
