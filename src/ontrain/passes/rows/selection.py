"""Rows to keep: a condition computed from the batch alone, counted before a plan is chosen, found again in the plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import onnx_ir as ir

from ontrain.graph import Builder, Role, by_role, clone_value, emit, extract, new_model, reads, set_role, static_dims
from ontrain.operators import Chance, record_of
from ontrain.passes.infra import Pass
from ontrain.passes.rows.section import Index

__all__ = ["Keep", "RowPass", "Selection", "anywhere", "batch_only", "bucket", "counting", "keep_model", "whether"]


@dataclass(frozen=True)
class Selection:
    """Rows that a pass would keep.

    Attributes:
        name: what their number is called in a plan's key.
        rows: how many there are.
        keep: a closed model from inputs of the batch to bool [rows].
    """

    name: str
    rows: int
    keep: ir.Model

    def index(self, count: int) -> Index:
        """Return the numbers of `count` rows, all those to keep among them, for a graph with the same inputs."""
        return Index(self.rows, count, lambda op: op.composite("SelectRows", self.condition(op), bucket=count))

    def condition(self, op: Builder) -> ir.Value:
        """Emit the condition, bool [rows]."""
        inputs = {v.name: v for v in op.graph.inputs}
        (keep,) = emit(op, self.keep.graph, [inputs[v.name] for v in self.keep.graph.inputs])
        return keep


class Keep(Protocol):
    """Says how many rows of selections a plan keeps: as counted in a batch, or as known of batches like it."""

    def __call__(self, row_pass: RowPass, model: ir.Model, selections: Sequence[Selection]) -> Sequence[int]:
        """Return a number of rows for each selection of a pass in a graph, at most as many as there are.

        What is left out for one selection may change what another is. A pass asks for several at once only where
        none depends on what is left out for another.
        """
        ...


class RowPass(Pass):
    """A pass that leaves out rows of a batch."""

    def apply(self, model: ir.Model, keep: Keep | None = None) -> tuple[ir.Model, int]:
        """Return a specialised forward graph without the rows that are not kept; without `keep` the graph as it is."""
        return (model, 0) if keep is None else self.leave_out(model, keep)

    def leave_out(self, model: ir.Model, keep: Keep) -> tuple[ir.Model, int]:
        """Find what need not all be kept, ask how many rows are, and return the new graph and what changed."""
        raise NotImplementedError


def bucket(count: int, rows: int) -> int:
    """Return the size of a plan for `count` of `rows` rows: eighths of a power of two, all where little is saved.

    At most 1/8 is waste, or 1/64 of all rows. It depends on nothing but the two numbers: what rounding and dropout make
    of a batch may not depend on the batches before it, or a resumed run would go another way.
    """
    power = 1 << max((count - 1).bit_length() - 1, 0)
    step = max(power // 8, rows // 64, 1)
    size = max(-(-count // step) * step, 1)
    return rows if 16 * size > 15 * rows else size


def batch_only(graph: ir.Graph, values: Sequence[ir.Value]) -> list[ir.Value] | None:
    """Return the batch's inputs that values depend on; None if they depend on a parameter, a buffer or chance."""
    needed, inputs = set(values), set()
    allowed = set(by_role(graph, Role.INPUT, Role.LABEL))
    for node in reversed(graph):
        if any(v in needed for v in node.outputs):
            if record_of(node).chance is not Chance.NEVER:
                return None
            needed.update(reads(node))
    for value in needed:
        if value.is_graph_input():
            if value not in allowed:
                return None
            inputs.add(value)
    return [v for v in graph.inputs if v in inputs]


def keep_model(
    model: ir.Model, values: Sequence[ir.Value], condition: Callable[[Builder, list[ir.Value]], ir.Value]
) -> ir.Model | None:
    """Return a closed model of a condition on some values; None if the batch alone does not determine it.

    Args:
        model: whose values they are.
        values: what the condition is computed from.
        condition: emits it from copies of the values.
    """
    inputs = batch_only(model.graph, values)
    if not inputs:
        return None
    closed = extract(model, inputs, values)
    op = Builder(closed.graph)
    with op.arithmetic():
        keep = condition(op, list(closed.graph.outputs))
    if keep.const_value is not None:
        return None
    closed.graph.outputs[:] = [keep]
    return closed


def whether(
    name: str, model: ir.Model, values: Sequence[ir.Value], condition: Callable[[Builder, list[ir.Value]], ir.Value]
) -> Selection | None:
    """Return a selection of two rows: one that is always kept, and one that is where a condition holds of the batch.

    Args:
        name: of the selection.
        model: whose values they are.
        values: what the condition is computed from.
        condition: emits it from copies of the values, bool [1].

    Returns:
        None if the batch alone does not determine it.
    """

    def both(op: Builder, copies: list[ir.Value]) -> ir.Value:
        rows: ir.Value = op.Concat(op.const(np.ones(1, bool)), condition(op, copies), axis=0)
        return rows

    keep = keep_model(model, values, both)
    return None if keep is None else Selection(name, 2, keep)


def anywhere(op: Builder, value: ir.Value) -> ir.Value:
    """Emit whether a bool value is true in any place, bool [1]."""
    highest = op.ReduceMax(op.Cast(op.Reshape(value, [-1]), to=ir.DataType.INT32), [0], keepdims=1)
    any_place: ir.Value = op.Greater(highest, 0)
    return any_place


def counting(model: ir.Model, selections: Sequence[Selection]) -> ir.Model:
    """Return what counts rows of a batch: from inputs of the model to a 0-d int64 for each selection, by its name."""
    needed = {v.name for selection in selections for v in selection.keep.graph.inputs}
    counter = new_model([clone_value(v) for v in model.graph.inputs if v.name in needed], "rows")
    op = Builder(counter.graph)
    for selection in selections:
        count = op.ReduceSum(op.Cast(selection.condition(op), to=ir.DataType.INT64), keepdims=0)
        count.name = op.fresh(selection.name)
        counter.graph.outputs.append(count)
    for value in counter.graph.inputs:
        set_role(value, Role.INPUT)
    return counter


def rows_of(value: ir.Value) -> int:
    """Return how many elements a value has."""
    count = 1
    for size in static_dims(value):
        count *= size
    return count
