"""Nodes of one graph made again by a builder: what rebuilding, inlining, unrolling and closing have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import onnx_ir as ir

from ontrain.errors import GraphError
from ontrain.graph.blame import blamed_on
from ontrain.graph.builder import Builder
from ontrain.graph.source import pass_source_on
from ontrain.graph.subgraphs import live_nodes, subgraphs

__all__ = ["Control", "Replay", "Rewrite", "as_outputs", "emit"]

Rewrite = Callable[[Builder, ir.Node, list[ir.Value | None]], Sequence[ir.Value | None] | None]
"""Given the builder, a node of the old graph and its inputs in the new one: new outputs, or None to copy the node."""
Control = Callable[["Replay", ir.Node, list[ir.Value | None]], Sequence[ir.Value | None]]
"""What becomes of a node that holds graphs and reads outer values in them: its new outputs."""


class Replay:
    """Makes nodes again, one after another.

    Attributes:
        op: the builder that makes them.
        mapped: for values of the old graph those of the new one.
        outer: the replay of the graph around this one, asked for values that this one does not define.
        typed: whether a builder typed the old graph's values: a node whose inputs keep their types keeps its own.
    """

    def __init__(
        self, op: Builder, mapped: dict[ir.Value, ir.Value], *,
        rewrite: Rewrite | None = None, control: Control, outer: Replay | None = None, naming: bool = True,
        typed: bool = False,
    ) -> None:  # fmt: skip
        self.op, self.mapped, self.outer, self.typed = op, mapped, outer, typed
        self._rewrite, self._control, self._naming = rewrite, control, naming

    def inner(self, op: Builder, mapped: dict[ir.Value, ir.Value], *, naming: bool = True) -> Replay:
        """Return a replay of a graph inside, or of one iteration of it; `naming` keeps the values' names."""
        return Replay(
            op, mapped, rewrite=self._rewrite, control=self._control, outer=self, naming=naming, typed=self.typed
        )

    def lookup(self, value: ir.Value | None) -> ir.Value | None:
        """Return the new value of an old one; a constant is made here.

        Raises:
            GraphError: the value is made by no node before.
        """
        return None if value is None else self.find(value)

    def find(self, value: ir.Value) -> ir.Value:
        """Return the new value of an old one that is present; see `lookup`."""
        if value not in self.mapped:
            if value.const_value is not None:
                self.mapped[value] = self.op.constant_like(value)
            elif self.outer is not None:
                return self.outer.find(value)
            else:
                raise GraphError(f"value {value.name!r} is used before it is made")
        return self.mapped[value]

    def run(self, nodes: Iterable[ir.Node]) -> None:
        """Make the nodes again, in order."""
        for node in nodes:
            self._step(node)

    def outputs(self, graph: ir.Graph) -> list[ir.Value]:
        """Make the live nodes of a graph again and return its outputs."""
        self.run(live_nodes(graph))
        return [self.find(value) for value in graph.outputs]

    def _step(self, node: ir.Node) -> None:
        mapped, find = self.mapped, self.find
        ins = [None if v is None else mapped[v] if v in mapped else find(v) for v in node.inputs]
        start, new = len(self.op.nodes), self.op.nodes
        try:
            outs = self._rewrite(self.op, node, ins) if self._rewrite is not None else None
            if outs is None and not node.domain and subgraphs(node):
                outs = self._control(self, node, ins)
            is_copy = outs is None
            if outs is None:
                outs = self._copy(node, ins)
        except Exception:  # no block around each node: it would take as long as the node itself
            with blamed_on(node, f"{node.op_type} cannot be made again"):
                raise
        if not is_copy:
            pass_source_on(node, new[start:])
        for before, after in zip(node.outputs, outs, strict=False):
            if after is not None:
                self.mapped[before] = after

    def _copy(self, node: ir.Node, ins: list[ir.Value | None]) -> Sequence[ir.Value]:
        attributes, told = node.attributes.values(), dict(node.metadata_props)
        copy = ir.Node(
            node.domain, node.op_type, ins, attributes, num_outputs=len(node.outputs), metadata_props=told
        )  # fmt: skip
        names = [v.name for v in node.outputs] if self._naming else ()
        alike = self.typed and _alike(node, ins)
        outputs = self.op.again(copy, node.outputs, names) if alike else self.op.add(copy, names)
        return outputs if isinstance(outputs, tuple) else (outputs,)


def _alike(node: ir.Node, ins: Sequence[ir.Value | None]) -> bool:
    """Whether a node's inputs are of the types that they were, so that its outputs are, and nothing new is constant."""
    if any(v.shape is None for v in node.outputs):
        return False
    fed = False
    for old, new in zip(node.inputs, ins, strict=True):
        if old is None or new is None:
            continue
        if (old.const_value is None) != (new.const_value is None):
            return False
        if old.type is not new.type and old.dtype != new.dtype:
            return False
        if old.shape is not new.shape and (old.shape is None or old.shape != new.shape):
            return False
        fed = fed or new.const_value is None
    return fed


def as_outputs(op: Builder, values: Iterable[ir.Value]) -> list[ir.Value]:
    """Return values fit to be the outputs of the builder's graph: each made by a node of it, none of them twice."""
    outputs: list[ir.Value] = []
    for value in values:
        producer = value.producer()
        if producer is None or producer.graph is not op.graph or any(value is value_seen for value_seen in outputs):
            value = op.identity(value)
        outputs.append(value)
    return outputs


def emit(op: Builder, graph: ir.Graph, inputs: Sequence[ir.Value]) -> list[ir.Value]:
    """Make the nodes of a closed graph at the end of the builder's, reading `inputs`; return its outputs."""
    replay = Replay(op, dict(zip(graph.inputs, inputs, strict=True)), control=_closed, naming=False)
    return replay.outputs(graph)


def _closed(replay: Replay, node: ir.Node, inputs: list[ir.Value | None]) -> Sequence[ir.Value | None]:
    raise AssertionError(f"{node.op_type} reads outer values: the graph is not closed")
