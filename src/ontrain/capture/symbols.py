"""Sizes that vary: torch's symbolic integers under the user's dimension names, and their values in the graph."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import onnx_ir as ir
import torch

from ontrain.capture.sympy_sizes import size_of
from ontrain.errors import CaptureError
from ontrain.graph import Builder
from ontrain.graph.size_arithmetic import SizeArithmetic
from ontrain.sizes import Size

__all__ = ["Symbols"]


class Symbols:
    """The names of a program's symbols, and where in the graph each name's value is found."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._sources: dict[str, tuple[ir.Value, int]] = {}
        self._numbers: dict[str, ir.Value] = {}
        self._derived: set[str] = set()
        self._arithmetic = SizeArithmetic(self._locate)

    def inside(self) -> Symbols:
        """Return the same for a graph inside: what is computed there is not known out here."""
        symbols = Symbols()
        symbols._names, symbols._sources = dict(self._names), dict(self._sources)
        symbols._numbers, symbols._derived = dict(self._numbers), set(self._derived)
        symbols._arithmetic = self._arithmetic.inside(symbols._locate)
        return symbols

    def name(self, size: torch.SymInt, wish: str) -> str:
        """Give the symbol of a dynamic input dimension the user's name; the first name given stays."""
        symbol = size_of(size.node.expr).as_symbol
        if symbol is not None:
            self._names.setdefault(symbol, wish)
        return str(self.convert(size))

    def locate(self, size: torch.SymInt, value: ir.Value, axis: int) -> None:
        """Record that a graph input's axis holds the value of this symbol."""
        converted = self.convert(size)
        if isinstance(converted, Size) and converted.as_symbol is not None:
            self._sources.setdefault(converted.as_symbol, (value, axis))

    def define(self, number: Any, value: ir.Value) -> None:
        """Record the vector of one element that holds a number taken out of a tensor."""
        symbol = size_of(number.node.expr).as_symbol
        if symbol is not None:
            self._numbers[symbol] = value
            if _follows_from_shapes(value):
                self._derived.add(symbol)

    def derive(self, val: torch.Tensor, value: ir.Value, arguments: Iterable[Any]) -> None:
        """Let sizes that torch does not know vary, if the numbers that make them follow from shapes alone.

        Args:
            val: the result as torch sees it, as of a slice between two numbers read out of tensors.
            value: the same in the graph.
            arguments: of the operator.
        """
        numbers = {symbol for argument in arguments if isinstance(argument, Size) for symbol in argument.symbols()}
        if not numbers & self._derived or not numbers <= self._known():
            return
        for axis, size in enumerate(val.shape):
            symbol = size_of(size.node.expr).as_symbol if isinstance(size, torch.SymInt) else None
            if symbol is not None and symbol not in self._sources and symbol not in self._names:
                self._sources[symbol] = (value, axis)
                self._derived.add(symbol)

    def _known(self) -> set[str]:
        return {*self._names.values(), *self._derived}

    def convert(
        self, size: int | float | bool | torch.SymInt | torch.SymFloat | torch.SymBool
    ) -> int | float | bool | Size:
        """Return a torch size as a number if it is one, else as an expression over the user's names."""
        if not isinstance(size, torch.SymInt | torch.SymFloat | torch.SymBool):
            return size
        converted = size_of(size.node.expr, self._names)
        number = converted.as_number
        if number is None:
            return converted
        return (
            bool(number)
            if isinstance(size, torch.SymBool)
            else int(number)
            if isinstance(size, torch.SymInt)
            else float(number)
        )

    def size(self, size: Any) -> int | Size:
        """Return a torch size as a whole number, or as an expression over the user's names."""
        converted = self.convert(size)
        return converted if isinstance(converted, Size) else int(converted)

    def dims(self, shape: Any) -> list[int | str]:
        """Return a torch shape as numbers and names."""
        converted = [self.convert(size) for size in shape]
        for size in converted:
            if isinstance(size, Size) and not size.symbols() <= self._known():
                raise _depends_on_data(size)
        return [str(size) if isinstance(size, Size) else int(size) for size in converted]

    def emit(self, op: Builder, size: Size) -> ir.Value:
        """Return the size as an int64 (or, for a quotient, float32) vector of one element."""
        return self._arithmetic.value(op, size)

    def _locate(self, op: Builder, symbol: str) -> ir.Value:
        if symbol in self._numbers:
            return self._numbers[symbol]
        if symbol not in self._sources:
            raise _depends_on_data(symbol)
        value, axis = self._sources[symbol]
        shape: ir.Value = op.Shape(value, start=axis, end=axis + 1)
        return shape


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


def _depends_on_data(size: Size | str) -> CaptureError:
    return CaptureError(
        f"a size ({size}) depends on the data",
        reason="only sizes that follow from the shapes of the inputs can be in a graph",
        way_out="replace boolean indexing, nonzero or item() in forward by torch.where or masking",
    )
