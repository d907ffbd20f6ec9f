"""What a module's forward assumed of sizes while it was traced: a graph is right only for sizes that fulfil it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from ontrain.capture.questions import asked_by_operators
from ontrain.capture.source import written_by_users
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
        unasked: further conditions, by which torch has sizes that follow from those of inputs two at least, as that of
            `labels[:, :-1]`; each with the size.
    """

    def __init__(
        self, dims: Sequence[tuple[str, int, Size]], conditions: Sequence[Size],
        ranges: Sequence[tuple[str, int, int | None]], unasked: Sequence[tuple[Size, Size]] = (),
    ) -> None:  # fmt: skip
        self._dims, self._conditions, self._ranges = list(dims), list(conditions), list(ranges)
        self._unasked = list(unasked)

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
        conditions, unasked = _assumed(environment)
        known = {size.as_symbol for _, _, size in dims}
        for size in _asked(program, environment, held):
            if size.symbols() and size.symbols() <= known and size not in conditions:
                conditions.append(size)
        symbols = [(s, r) for s, r in program.range_constraints.items() if s.is_Symbol]
        ranges = [(s.name, _bound(r.lower) or 0, _bound(r.upper)) for s, r in symbols]
        return cls(dims, conditions, ranges, [pair for pair in unasked if pair[0] not in conditions])

    def violated(self, shapes: Mapping[str, Sequence[int]], *, ones: bool = True) -> str | None:
        """Return the condition that these shapes of the inputs violate, in words; None if the graph holds for them.

        Args:
            shapes: by input name.
            ones: whether a size of 0 or 1 violates. While tracing, torch takes every size that varies to be two at
                least, so that it does not broadcast. Where they do not, a size that follows from others is 0 at least.
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
            if (upper is not None and size > upper) or (size < lower and (ones or self._is_real(symbol, lower))):
                return f"{lower} <= {self._words(Size.symbol(symbol))}" + ("" if upper is None else f" <= {upper}")
        unasked = [condition if ones else _at_least_none(size) for condition, size in self._unasked]
        for condition in (*self._conditions, *unasked):
            if condition.symbols() <= sizes.keys() and not condition.value(sizes):
                return self._words(condition)
        return None

    def _is_real(self, symbol: str, lower: int) -> bool:
        """Whether a lower bound is more than that sizes are two at least."""
        below = {symbol: lower - 1}
        return lower > 2 and all(c.value(below) for c, _ in self._unasked if c.symbols() == {symbol})

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
            "unasked": [[str(condition), str(size)] for condition, size in self._unasked],
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Guards:
        """Return what `plain` gave."""
        return cls(
            [(str(name), int(axis), parse(expr)) for name, axis, expr in plain["dims"]],
            [parse(condition) for condition in plain["conditions"]],
            [(str(s), int(lower), None if upper is None else int(upper)) for s, lower, upper in plain["ranges"]],
            [(parse(condition), parse(size)) for condition, size in plain["unasked"]],
        )

    def _words(self, expr: Size) -> str:
        """The user's words for an expression: a symbol is the first dimension that it stands for."""
        names: dict[str, str] = {}
        for name, axis, dim in self._dims:
            if dim.as_symbol is not None:
                names.setdefault(dim.as_symbol, f"{name}.shape[{axis}]")
        return expr.text(names)


_SQUEEZES = (torch.ops.aten.squeeze, torch.ops.aten.squeeze_)
_OF_SHAPES = ("_prims_common/__init__.py", "_meta_registrations.py")
"""Files of torch that compute which shape and layout an operator's result has, and nothing else."""


def _of_shapes_alone(guard: Any) -> bool:
    """Whether a guard of torch's was asked where the shape of an operator's result is computed.

    It broadcasts a size of one there, and looks how tensors lie in memory. A graph broadcasts when it runs.
    """
    place = str(getattr(getattr(guard, "sloc", None), "framework_loc", ""))
    return any(file in place for file in _OF_SHAPES)


def _assumed(environment: Any) -> tuple[list[Size], list[tuple[Size, Size]]]:
    """What torch assumed of sizes: conditions, and those that hold only because it takes sizes to be two at least.

    The latter come with what is left of each without that.
    """
    conditions, unasked, by_operators = [], [], asked_by_operators(environment)
    for place, guard in enumerate(environment.guards):
        expr = guard.expr.xreplace(environment.replacements)
        size = _two_at_least(expr) if place in by_operators or _of_shapes_alone(guard) else None
        if size is None:
            conditions.append(size_of(expr))
        else:
            unasked.append((size_of(expr), size_of(size)))
    return conditions, unasked


def _asked(program: ExportedProgram, environment: Any, held: Sequence[Any]) -> list[Size]:
    """What forward itself asks of sizes, and what squeezing a dimension takes for granted."""
    asked = [size_of(condition.xreplace(environment.replacements)) for condition in held]
    squeezed = [size_of(size.xreplace(environment.replacements)) for size in _squeezed(program)]
    return asked + [Size.call("!=", size, 1) for size in squeezed]


def _two_at_least(expr: Any) -> Any:
    """The size of which a condition says that it is not one, or two at least; None if it says something else."""
    kind = type(expr).__name__
    if kind == "StrictLessThan":  # 11 < 11*s - 11, as the strides of a result are compared
        common, size = expr.rhs.primitive()
        return size if expr.lhs == common else None
    relation = {"Unequality": 1, "GreaterThan": 2}.get(kind)
    if relation is None:
        return None
    left, right = expr.args
    if right == relation:
        return left
    return right if left == 1 == relation else None


def _at_least_none(size: Size) -> Size:
    return Size.call(">=", size, 0)


def _squeezed(program: ExportedProgram) -> Iterator[Any]:
    """Sizes, sympy's, that the user's code drops if they are one, as by `logits.squeeze()`; in the program they stay.

    What packages drop so is the same computation in most cases, as in a loss of both logits and labels.
    """
    graphs = [module.graph for module in program.graph_module.modules() if isinstance(module, fx.GraphModule)]
    for node in (node for graph in graphs for node in graph.nodes):
        if getattr(node.target, "overloadpacket", None) not in _SQUEEZES or not written_by_users(node):
            continue
        shape = node.args[0].meta["val"].shape
        dims: Any = node.args[1] if len(node.args) > 1 else range(len(shape))
        for dim in [dims] if isinstance(dims, int) else dims:
            if shape and isinstance(shape[dim], torch.SymInt):
                yield shape[dim].node.expr


def _bound(end: Any) -> int | None:
    """A range's end; torch has infinities of its own, which are no numbers."""
    return int(end) if isinstance(end, int) or getattr(end, "is_Integer", False) else None
