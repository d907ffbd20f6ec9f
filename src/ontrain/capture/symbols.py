"""Sizes that vary: torch's symbolic integers under the user's dimension names, and their values in the graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import onnx_ir as ir
import torch
from torch import fx

from ontrain.capture.sympy_sizes import size_of
from ontrain.errors import CaptureError
from ontrain.graph import Builder, SizeArithmetic
from ontrain.internals import OpOverload, of
from ontrain.operators import Value
from ontrain.sizes import Size

__all__ = ["Symbols"]


class Symbols:
    """The names of a program's symbols, and where in the graph each name's value is found.

    Args:
        by_values: whether a size may depend on the values of tensors; its symbol is then that of the first result that
            has it.
    """

    def __init__(self, *, by_values: bool = False) -> None:
        self.by_values = by_values
        self._names: dict[str, str] = {}
        self._sources: dict[str, tuple[ir.Value, int]] = {}
        self._numbers: dict[str, Value] = {}
        self.decided: dict[str, ir.Value] = {}
        """Vectors of one element that forward branches on, by torch's symbol for the number."""
        self._derived: set[str] = set()
        self._sizes: set[str] | None = None
        self._bounds: set[str] = set()
        self._arithmetic = SizeArithmetic(self._locate)

    def inside(self) -> Symbols:
        """Return the same for a graph inside: what is computed there is not known out here."""
        symbols = Symbols(by_values=self.by_values)
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

    def define(self, number: torch.SymInt | torch.SymFloat, value: Value) -> None:
        """Record the vector of one element that holds a number taken out of a tensor."""
        symbol = size_of(number.node.expr).as_symbol
        if symbol is not None:
            self._numbers[symbol] = value
            if _follows_from_shapes(value):
                self._derived.add(symbol)

    def count(self, value: ir.Value, axis: int) -> Size:
        """Return the size of a value that no shape tells, as a symbol of its own."""
        name = f"count{len(self._sources)}"
        self._sources[name] = (value, axis)
        self._derived.add(name)
        return Size.symbol(name)

    def as_size(self, op: Builder, number: ir.Value) -> Size:
        """Return a number that is computed from values as a size, that of a tensor which is as long."""
        length = op.Reshape(number if number.dtype == ir.DataType.INT64 else op.Cast(number, to=ir.DataType.INT64), [1])
        return self.count(op.ConstantOfShape(length, value=ir.tensor([False])), 0)

    def equate(self, seen: Any, size: Size) -> None:
        """Let torch's symbol of a size stand for this one, unless it stands for another."""
        symbol = size_of(seen.node.expr).as_symbol if isinstance(seen, torch.SymInt) else None
        if symbol is not None and symbol not in self._sources:
            self._names.setdefault(symbol, str(size))

    def is_size(self, number: torch.SymInt, value: ir.Value, graph: fx.Graph) -> bool:
        """Whether a number out of a tensor, or what is made of it, is the size of something or says where a slice ends.

        Args:
            number: as torch sees it.
            value: the same in the graph.
            graph: where it is used.
        """
        if self._sizes is None:
            self._sizes = {symbol for node in graph.nodes for symbol in _in_sizes(node)}
            self._bounds = {symbol for node in graph.nodes for symbol in _in_bounds(node)}
        symbol = size_of(number.node.expr).as_symbol
        return symbol in self._sizes or (symbol in self._bounds and not _follows_from_shapes(value))

    def is_planned(self, size: Any) -> bool:
        """Whether each plan has a number for this size, because it follows from shapes, measured ones included."""
        return not isinstance(size, Size) or size.symbols() <= self._known()

    def is_natural(self, size: Size) -> bool:
        """Whether a size is made of lengths by sums and products, so that it is not below 0 as a number may be."""
        return size.is_dimension and size.symbols() <= {*self._names.values()}

    def learn(self, seen: torch.Tensor, value: ir.Value) -> None:
        """Let a result say the sizes that it is the first to have, where sizes may depend on values.

        Args:
            seen: the result as torch sees it.
            value: the same in the graph.
        """
        if self.by_values:
            self._say(seen, value)

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
        self._say(val, value)

    def _say(self, seen: torch.Tensor, value: ir.Value) -> None:
        for axis, size in enumerate(seen.shape):
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

    def emit(self, op: Builder, size: Size) -> Value:
        """Return the size as an int64 (or, for a quotient, double) vector of one element."""
        return self._arithmetic.value(op, size)

    def _locate(self, op: Builder, symbol: str) -> Value:
        if symbol in self._numbers:
            return self._numbers[symbol]
        if symbol not in self._sources:
            raise _depends_on_data(symbol)
        value, axis = self._sources[symbol]
        return op.Shape(value, start=axis, end=axis + 1)


def _in_sizes(node: fx.Node) -> Iterator[str]:
    """The symbols that a node's arguments and results have as sizes, strides left out."""
    values = node.meta.get("val")
    for value in values if isinstance(values, tuple | list) else [values]:
        if isinstance(value, torch.Tensor):
            for size in value.shape:
                yield from _symbols_of(size)
    if not isinstance(node.target, OpOverload) or not isinstance(values, torch.Tensor | tuple | list):
        return
    for argument, operand in zip(of("torch._ops.OpOverload._schema", node.target).arguments, node.args, strict=False):
        if "SymInt" in str(argument.type):
            for number in operand if isinstance(operand, list | tuple) else [operand]:
                yield from _symbols_of(number.meta.get("val") if isinstance(number, fx.Node) else number)


def _in_bounds(node: fx.Node) -> Iterator[str]:
    """The symbols of where a slice begins and ends: they say its size, which torch gives a symbol of its own."""
    if not isinstance(node.target, OpOverload):
        return
    if of("torch._ops.OpOverload._schema", node.target).name in ("aten::slice", "aten::slice_copy"):
        for number in (*node.args[2:], *node.kwargs.values()):
            yield from _symbols_of(number.meta.get("val") if isinstance(number, fx.Node) else number)


def _symbols_of(size: Any) -> Iterable[str]:
    return size_of(size.node.expr).symbols() if isinstance(size, torch.SymInt) else ()


def _follows_from_shapes(value: ir.Value) -> bool:
    """Whether a value is made of constants and of the shapes of values, so that it is a number in every plan."""
    waiting, seen = [value], set()
    while waiting:
        node = waiting.pop()
        producer = node.producer()
        if node in seen or node.const_value is not None or (producer is not None and producer.op_type == "Shape"):
            continue
        if producer is None:
            return False
        seen.add(node)
        waiting += [v for v in producer.inputs if v is not None]
    return True


def _depends_on_data(size: Size | str) -> CaptureError:
    return CaptureError(
        f"a size ({size}) depends on the data",
        reason="only sizes that follow from the shapes of the inputs can be in a graph",
        way_out="replace boolean indexing, nonzero or item() in forward by torch.where or masking; or train the module "
        "with ORTModule, which learns most such sizes as it runs",
    )
