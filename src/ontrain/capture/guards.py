"""What a module's forward assumed of sizes while it was traced: a graph is right only for sizes that fulfil it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from ontrain.capture.sympy_sizes import size_of
from ontrain.sizes import Size, parse

__all__ = ["GUARDS", "Guards"]

GUARDS = "ontrain.guards"
"""Where a captured model has its guards: `model.meta`, which no ONNX file holds."""


class Guards:
    """The conditions on sizes under which an exported program is its module.

    `if x.shape[1] > 512:` in forward takes one branch while tracing; for sizes that take the other the graph is wrong.

    Args:
        dims: an input, one of its axes, and the size there.
        conditions: all of them hold.
        ranges: a symbol, and the least and greatest size that it stands for; None is no bound.
    """

    def __init__(
        self, dims: Sequence[tuple[str, int, Size]], conditions: Sequence[Size],
        ranges: Sequence[tuple[str, int, int | None]],
    ) -> None:  # fmt: skip
        self._dims, self._conditions, self._ranges = list(dims), list(conditions), list(ranges)

    @classmethod
    def of(cls, program: ExportedProgram, inputs: Sequence[str], held: Sequence[Any] = ()) -> Guards:
        """Return the guards of a program as torch.export made it, whose tensor inputs have these names, in order.

        Args:
            program: torch's.
            inputs: names of its tensor inputs.
            held: further conditions, sympy's, on the sizes of inputs: torch has none for `x.shape[0] == 1` in forward,
                because it takes sizes that vary to be two at least.
        """
        placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
        tensors = [
            node.meta["val"]
            for node, spec in zip(placeholders, program.graph_signature.input_specs, strict=True)
            if spec.kind is InputKind.USER_INPUT and isinstance(node.meta.get("val"), torch.Tensor)
        ]
        environment = None
        dims = []
        for name, tensor in zip(inputs, tensors, strict=True):
            for axis, size in enumerate(tensor.shape):
                expr = size
                if isinstance(size, torch.SymInt):
                    environment, expr = size.node.shape_env, size.node.expr
                dims.append((name, axis, size_of(expr)))
        if environment is None:
            return cls(dims, [], [])
        conditions = [size_of(guard.expr.xreplace(environment.replacements)) for guard in environment.guards]
        known = {size.as_symbol for _, _, size in dims}
        asked = [size_of(condition.xreplace(environment.replacements)) for condition in held]
        conditions += [size for size in asked if size.symbols() and size.symbols() <= known and size not in conditions]
        symbols = [(s, r) for s, r in program.range_constraints.items() if s.is_Symbol]
        ranges = [(s.name, _bound(r.lower) or 0, _bound(r.upper)) for s, r in symbols]
        return cls(dims, conditions, ranges)

    def violated(self, shapes: Mapping[str, Sequence[int]], *, ones: bool = True) -> str | None:
        """Return the condition that these shapes of the inputs violate, in words; None if the graph holds for them.

        Args:
            shapes: by input name.
            ones: whether a size of 0 or 1 violates. While tracing, torch takes every size that varies to be two at
                least, so that it does not broadcast.
        """
        sizes: dict[str, int] = {}
        for name, axis, expr in self._dims:
            size = shapes[name][axis]
            if expr.as_symbol is not None:
                if sizes.setdefault(expr.as_symbol, size) != size:
                    return f"{name}.shape[{axis}] == {self._words(expr)}"
            elif expr.as_number not in (None, size):
                return f"{name}.shape[{axis}] == {expr}"
        for name, axis, expr in self._dims:
            if expr.symbols() <= sizes.keys() and expr.value(sizes) != shapes[name][axis]:
                return f"{name}.shape[{axis}] == {self._words(expr)}"
        for symbol, lower, upper in self._ranges:
            size = sizes.get(symbol, lower)
            if (upper is not None and size > upper) or (size < lower and (ones or lower > 2)):
                return f"{lower} <= {self._words(Size.symbol(symbol))}" + ("" if upper is None else f" <= {upper}")
        for condition in self._conditions:
            if condition.symbols() <= sizes.keys() and not condition.value(sizes):
                return self._words(condition)
        return None

    def symbols(self) -> set[str]:
        """Return the symbols that stand for sizes of inputs."""
        return {expr.as_symbol for _, _, expr in self._dims if expr.as_symbol is not None}

    def sizes(self, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
        """Return the sizes that symbols stand for where the inputs have these shapes."""
        named = {expr.as_symbol: shapes[name][axis] for name, axis, expr in self._dims}
        return {symbol: size for symbol, size in named.items() if symbol is not None}

    def plain(self) -> dict[str, Any]:
        """Return the guards as lists, strings and numbers."""
        return {
            "dims": [[name, axis, str(expr)] for name, axis, expr in self._dims],
            "conditions": [str(condition) for condition in self._conditions],
            "ranges": [list(bounds) for bounds in self._ranges],
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Guards:
        """Return what `plain` gave."""
        return cls(
            [(str(name), int(axis), parse(expr)) for name, axis, expr in plain["dims"]],
            [parse(condition) for condition in plain["conditions"]],
            [(str(s), int(lower), None if upper is None else int(upper)) for s, lower, upper in plain["ranges"]],
        )

    def _words(self, expr: Size) -> str:
        """The user's words for an expression: a symbol is the first dimension that it stands for."""
        names: dict[str, str] = {}
        for name, axis, dim in self._dims:
            if dim.as_symbol is not None:
                names.setdefault(dim.as_symbol, f"{name}.shape[{axis}]")
        return expr.text(names)


def _bound(end: Any) -> int | None:
    """A range's end; torch has infinities of its own, which are no numbers."""
    return int(end) if isinstance(end, int) or getattr(end, "is_Integer", False) else None
