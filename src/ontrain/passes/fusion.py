"""Fusions: a pattern of nodes, a check that says why a place is left alone, and what takes the pattern's place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NoReturn

import onnx_ir as ir

from ontrain.graph import Builder
from ontrain.passes.infra import RewritePass, left_alone

__all__ = ["Fusion", "Match", "Pattern", "fail"]

Through = Callable[[ir.Node], bool]


@dataclass(frozen=True)
class Pattern:
    """A node, and what makes its operands.

    Args:
        op_type: the operator.
        operands: for the first operands a name, or the pattern of the node that makes it. A name that ends in "?" is of
            an operand that may be absent; operands behind the last are not looked at.
        name: of the node.
        commutes: whether the first two operands may come in the other order.
        through: operators of one operand that may lie between this node and the one that reads it.
        domain: of the operator; by default the standard's.
    """

    op_type: str
    operands: tuple[str | Pattern, ...]
    name: str = "last"
    commutes: bool = False
    through: Through | None = None
    domain: str = ""

    def matches(self, node: ir.Node) -> Iterator[Match]:
        """Give each way in which a node ends the pattern."""
        if node.domain != self.domain or node.op_type != self.op_type:
            return
        for order in self._orders():
            match = Match(node)
            if self._fits(node, order, (), match):
                yield match

    def _orders(self) -> list[tuple[int, ...]]:
        """The orders in which operands may come."""
        order = tuple(range(len(self.operands)))
        return [order, (1, 0, *order[2:])] if self.commutes else [order]

    def _fits(self, node: ir.Node, order: Sequence[int], path: tuple[int, ...], match: Match) -> bool:
        match.nodes[self.name] = node
        for operand, index in zip(self.operands, order, strict=True):
            value = node.inputs[index] if index < len(node.inputs) else None
            here = (*path, index)
            if isinstance(operand, str):
                if value is None and not operand.endswith("?"):
                    return False
                match.values[operand.rstrip("?")] = value
                match.paths[operand.rstrip("?")] = here if value is not None else None
            elif value is None or not operand.reached_by(value, here, match):
                return False
        return True

    def reached_by(self, value: ir.Value, path: tuple[int, ...], match: Match) -> bool:
        """Whether a value is the pattern's result, seen through what may lie between."""
        maker = value.producer()
        while maker is not None and self.through is not None and self.through(maker):
            match.inner.append(maker)
            assert maker.inputs[0] is not None
            maker, path = maker.inputs[0].producer(), (*path, 0)
        if maker is None or maker.domain != self.domain or maker.op_type != self.op_type:
            return False
        inner = [*match.inner, maker]
        for order in self._orders():
            match.inner[:] = inner
            if self._fits(maker, order, path, match):
                return True
        return False


@dataclass
class Match:
    """A place where a pattern lies.

    Attributes:
        node: the last node, whose results are replaced.
        nodes: the nodes of the pattern by name.
        values: the operands by name, as the graph has them; None for those that are absent.
        inner: the nodes before the last.
        paths: how each operand is reached from the last node, by positions of inputs.
    """

    node: ir.Node
    nodes: dict[str, ir.Node] = field(default_factory=dict)
    values: dict[str, ir.Value | None] = field(default_factory=dict)
    inner: list[ir.Node] = field(default_factory=list)
    paths: dict[str, tuple[int, ...] | None] = field(default_factory=dict)

    def __getitem__(self, name: str) -> ir.Value:
        """Return an operand that is there."""
        value = self.values[name]
        assert value is not None
        return value


class _NoFusionError(Exception):
    """Raised where a pattern lies that is not to be replaced."""


def fail(reason: str) -> NoReturn:
    """Leave this place alone; the report of the pass says why."""
    raise _NoFusionError(reason)


class Fusion(RewritePass):
    """A pass that replaces patterns.

    Attributes:
        patterns: tried in this order; a node belongs to one match at most.
    """

    patterns: ClassVar[tuple[Pattern, ...]]

    def check(self, match: Match) -> None:
        """Call `fail` where the pattern is not to be replaced."""

    def replace(self, op: Builder, match: Match, operands: dict[str, ir.Value | None]) -> list[ir.Value | None]:
        """Return what takes the place of the last node's results, made of the operands by name in the new graph."""
        raise NotImplementedError

    def begin(self, graph: ir.Graph) -> None:
        """Find the matches."""
        self._matches: dict[ir.Node, Match] = {}
        self._absorbed: set[ir.Node] = set()
        outputs = set(graph.outputs)
        for pattern in self.patterns:
            for node in graph:
                if node in self._matches or node in self._absorbed:
                    continue
                match = self._first(pattern, node, outputs)
                if match is not None:
                    self._matches[node] = match
                    self._absorbed.update(match.inner)

    def _first(self, pattern: Pattern, node: ir.Node, outputs: set[ir.Value]) -> Match | None:
        for match in pattern.matches(node):
            if not self._absorbed.isdisjoint(match.inner):
                continue
            try:
                for inner in match.inner:
                    if len(inner.outputs[0].uses()) > 1 or inner.outputs[0] in outputs:
                        fail(f"others read the result of {inner.op_type}")
                self.check(match)
            except _NoFusionError as error:
                left_alone(str(error))
                continue
            return match
        return None

    def has_work(self, graph: ir.Graph) -> bool:
        """Whether there is a match."""
        return bool(self._matches)

    def rewrite(self, op: Builder, node: ir.Node, inputs: list[ir.Value | None]) -> list[ir.Value | None] | None:
        """Replace the last node of a match; what lies before it goes, as nobody reads it."""
        match = self._matches.get(node)
        if match is None:
            return None
        operands = {name: None if path is None else _reached(inputs, path) for name, path in match.paths.items()}
        return self.replace(op, match, operands)


def _reached(inputs: Sequence[ir.Value | None], path: tuple[int, ...]) -> ir.Value:
    """The value at the end of a path, in the new graph, which keeps the nodes before the last until it is done."""
    value = inputs[path[0]]
    for index in path[1:]:
        maker = value.producer() if value is not None else None
        assert maker is not None
        value = maker.inputs[index]
    assert value is not None
    return value
