"""What a pass is, and what it says about itself when it has run."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from ontrain.graph import DOMAIN, Builder, drop_dead_nodes, live_nodes, rebuild, subgraphs

__all__ = ["Fuel", "Pass", "PassReport", "RewritePass", "left_alone", "limited", "note"]


class Pass:
    """A graph goes in, a cheaper one comes out.

    Subclasses open their docstring with a picture of before and after, and say why the two are equal.

    Attributes:
        changes_numerics: whether results may differ by more than rounding; such passes run only when named.
        attends_sequences: whether the pass is worth while only where a provider's attention takes packed sequences.
        multiplies_bfloat16: whether the pass is worth while only where a provider has units for bfloat16.
        serves: whether the pass is for graphs that a session for inference runs; see `ontrain.passes.serving`.
        level: from which of onnxruntime's levels of optimisation a session runs it: 0 always, 1 basic, 2 extended.
        tidies: whether a pass over a whole file does what the passes over its plans do, too.
    """

    changes_numerics = False
    attends_sequences = False
    multiplies_bfloat16 = False
    serves = False
    level = 1
    tidies = False

    @property
    def name(self) -> str:
        """Name to disable it by."""
        return type(self).__name__

    def apply(self, model: ir.Model) -> tuple[ir.Model, int]:
        """Return the new model and how many places changed."""
        raise NotImplementedError


@dataclass
class Fuel:
    """How many nodes a `RewritePass` may still rewrite, how many it did, and the last of them; what a pass says.

    Attributes:
        tidy: the model that is known to have no dead nodes and no graphs inside nodes, for the passes that follow.
    """

    left: float = float("inf")
    used: int = 0
    node: ir.Node | None = None
    notes: list[str] = field(default_factory=list)
    refusals: Counter[str] = field(default_factory=Counter)
    tidy: ir.Model | None = None


_fuel: ContextVar[Fuel | None] = ContextVar("_fuel", default=None)


@contextmanager
def limited(fuel: Fuel) -> Iterator[None]:
    """Let a `RewritePass` that is applied inside the block use this fuel and no more."""
    token = _fuel.set(fuel)
    try:
        yield
    finally:
        _fuel.reset(token)


def note(text: str) -> None:
    """Say in the report of the pass that runs what it did, or why it did not."""
    fuel = _fuel.get()
    if fuel is not None and text not in fuel.notes:
        fuel.notes.append(text)


def left_alone(reason: str) -> None:
    """Count in the report of the pass that runs a place that looks right, and say why it stays as it is."""
    fuel = _fuel.get()
    if fuel is not None:
        fuel.refusals[reason] += 1


class _AskedError(Exception):
    """Raised where a pass makes a node of a graph that it is only to look at."""


class _Onlooker:
    """In place of a builder: what is asked of it says that a pass would make something."""

    def __getattr__(self, name: str) -> Any:
        raise _AskedError


_onlooker: Any = _Onlooker()


class RewritePass(Pass):
    """A pass that looks at one node at a time while the graph is rebuilt.

    Attributes:
        looks_first: whether `rewrite` takes anything of the builder only to replace the node, and notes nothing, so
            that a look at the nodes of a graph tells whether there is work.
    """

    looks_first = False

    def begin(self, graph: ir.Graph) -> None:
        """Look at the whole graph before the first node."""

    def has_work(self, graph: ir.Graph) -> bool:
        """Whether a node of the graph may be rewritten, asked after `begin`. A pass that cannot tell says yes."""
        return not self.looks_first or any(map(self._would_rewrite, graph))

    def _would_rewrite(self, node: ir.Node) -> bool:
        try:
            return self.rewrite(_onlooker, node, list(node.inputs)) is not None
        except _AskedError:
            return True

    def rewrite(self, op: Builder, node: ir.Node, inputs: list[ir.Value | None]) -> list[ir.Value | None] | None:
        """Return new outputs for `node`, or None to keep it."""
        raise NotImplementedError

    def apply(self, model: ir.Model) -> tuple[ir.Model, int]:
        """Rebuild the model, counting the nodes that were rewritten; a model without work for the pass is returned."""
        # What a pass knows of a graph belongs to one application: there is one pass for all threads.
        own = copy.copy(self)
        own.begin(model.graph)
        count, fuel = 0, _fuel.get() or Fuel()
        if not own.has_work(model.graph) and (fuel.tidy is model or _is_flat_and_live(model.graph)):
            fuel.tidy = model
            return model, 0

        def visit(op: Builder, node: ir.Node, inputs: list[ir.Value | None]) -> list[ir.Value | None] | None:
            nonlocal count
            if fuel.left <= 0:
                return None
            with op.arithmetic():
                rebuilt = own.rewrite(op, node, inputs)
            if rebuilt is None:
                return None
            count += 1
            fuel.left, fuel.used, fuel.node = fuel.left - 1, fuel.used + 1, node
            return rebuilt

        rebuilt = rebuild(model, visit, typed=True)
        if count:
            drop_dead_nodes(rebuilt.graph)
        for node in rebuilt.graph:
            count += own._inside(node)
        return rebuilt, count

    def _inside(self, node: ir.Node) -> int:
        """Apply the pass to the closed graphs of a branch or loop."""
        count = 0
        for name, attr in node.attributes.items():
            if attr.type == ir.AttributeType.GRAPH and node.domain == DOMAIN:
                body, changed = self.apply(ir.Model(attr.value, ir_version=10))
                node.attributes[name] = ir.AttrGraph(name, body.graph)
                count += changed
        return count


def _is_flat_and_live(graph: ir.Graph) -> bool:
    """Whether a rebuild would find no node to drop, and no graph inside a node to look into."""
    return not any(map(subgraphs, graph)) and len(live_nodes(graph)) == len(graph)


@dataclass
class PassReport:
    """What a pass did.

    Attributes:
        name: of the pass.
        changed: places that it changed.
        nodes_before, nodes_after: how many nodes the graph had.
        seconds: what it took.
        stage: "forward" or "step".
        number: its place among the passes that ran for this plan, from 1; `ONTRAIN_PASS_LIMIT` counts the same.
        rewrites: nodes for which it gave other outputs (a `RewritePass`).
        last_node, last_source: the last of these nodes, and the line of the user's model that made it.
        notes: what it says about what it did and left alone.
        refusals: why places that looked right stay as they are, and how many for each reason.
    """

    name: str
    changed: int
    nodes_before: int
    nodes_after: int
    seconds: float
    stage: str = ""
    number: int = 0
    rewrites: int = 0
    last_node: str | None = None
    last_source: str | None = None
    notes: list[str] = field(default_factory=list)
    refusals: dict[str, int] = field(default_factory=dict)
