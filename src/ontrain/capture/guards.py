"""What a module's forward assumed of sizes while it was traced: a graph is right only for sizes that fulfil it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

__all__ = ["GUARDS", "Guards"]

GUARDS = "ontrain.guards"
"""Where a captured model has its guards: `model.meta`, which no file holds."""


class Guards:
    """The conditions on sizes under which an exported program is its module.

    `if x.shape[1] > 512:` in forward takes one branch while tracing; for sizes that take the other the graph is wrong.

    Args:
        program: as torch.export made it.
        inputs: names of its tensor inputs, in order.
    """

    def __init__(self, program: ExportedProgram, inputs: Sequence[str]) -> None:
        self._dims: list[tuple[str, int, Any]] = []
        self._conditions: list[Any] = []
        self._ranges: dict[Any, tuple[Any, Any]] = {}
        placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
        found = [
            node.meta["val"]
            for node, spec in zip(placeholders, program.graph_signature.input_specs, strict=True)
            if spec.kind is InputKind.USER_INPUT and isinstance(node.meta.get("val"), torch.Tensor)
        ]
        environment = None
        for name, tensor in zip(inputs, found, strict=True):
            for axis, size in enumerate(tensor.shape):
                expr = size
                if isinstance(size, torch.SymInt):
                    environment, expr = size.node.shape_env, size.node.expr
                self._dims.append((name, axis, sympy.sympify(expr)))
        if environment is None:
            return
        self._conditions = [
            condition
            for guard in environment.guards
            if (condition := sympy.sympify(guard.expr).xreplace(environment.replacements)) != sympy.true
        ]
        self._ranges = {s: (r.lower, r.upper) for s, r in program.range_constraints.items()}

    def violated(self, shapes: Mapping[str, Sequence[int]], *, ones: bool = True) -> str | None:
        """Return the condition that these shapes of the inputs violate, in words; None if the graph holds for them.

        Args:
            shapes: by input name.
            ones: whether a size of 0 or 1 violates. While tracing, torch takes every size that varies to be two at
                least, so that it does not broadcast.
        """
        sizes: dict[Any, int] = {}
        for name, axis, expr in self._dims:
            size = shapes[name][axis]
            if expr.is_Symbol:
                if sizes.setdefault(expr, size) != size:
                    return f"{name}.shape[{axis}] == {self._where(expr)}"
            elif expr.is_Integer and int(expr) != size:
                return f"{name}.shape[{axis}] == {expr}"
        for name, axis, expr in self._dims:
            if expr.free_symbols <= sizes.keys() and expr.xreplace(sizes) != shapes[name][axis]:
                return f"{name}.shape[{axis}] == {self._words(expr)}"
        for symbol, (lower, upper) in self._ranges.items():
            size = sizes.get(symbol, lower)
            if size > upper or (size < lower and (ones or lower > 2)):
                return f"{lower} <= {self._where(symbol)} <= {upper}"
        for condition in self._conditions:
            if condition.free_symbols <= sizes.keys() and condition.xreplace(sizes) == sympy.false:
                return self._words(condition)
        return None

    def _where(self, symbol: Any) -> str:
        return next(f"{name}.shape[{axis}]" for name, axis, expr in self._dims if expr == symbol)

    def _words(self, expr: Any) -> str:
        named = {s: sympy.Symbol(self._where(s)) for s in expr.free_symbols if any(s == e for *_, e in self._dims)}
        return str(expr.xreplace(named))
