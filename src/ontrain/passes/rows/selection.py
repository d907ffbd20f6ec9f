"""Rows to keep: a condition computed from the batch alone, counted before a plan is chosen, found again in the plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import onnx_ir as ir

from ontrain.graph import Builder, Role, by_role, emit, extract, new_model, reads, set_role, static_dims
from ontrain.graph.fold import RANDOM
from ontrain.graph.rebuild import clone_value
from ontrain.passes.infra import Pass
from ontrain.passes.rows.section import Index

__all__ = ["RowPass", "Selection", "batch_only", "bucket", "counting", "given", "keep_model"]


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

    def index(self, kept: int) -> Index:
        """Return the numbers of `kept` rows, all those to keep among them, for a graph with the same inputs."""
        return Index(self.rows, kept, lambda op: op.composite("SelectRows", self.condition(op), bucket=kept))

    def condition(self, op: Builder) -> ir.Value:
        """Emit the condition, bool [rows]."""
        inputs = {v.name: v for v in op.graph.inputs}
        (keep,) = emit(op, self.keep.graph, [inputs[v.name] for v in self.keep.graph.inputs])
        return keep


class RowPass(Pass):
    """A pass that leaves out rows of a batch. How many is counted for each batch and given with `given`.

    Attributes:
        at_once: whether no selection depends on what is left out for another, so that all can be counted on one graph.
    """

    at_once = False

    def selections(self, model: ir.Model) -> list[Selection]:
        """Return what it would keep of a specialised forward graph."""
        raise NotImplementedError


_given: ContextVar[Mapping[str, int] | None] = ContextVar("_given", default=None)


@contextmanager
def given(counts: Mapping[str, int]) -> Iterator[None]:
    """Let row passes inside the block keep so many rows, by the names of their selections; without a name all."""
    token = _given.set(counts)
    try:
        yield
    finally:
        _given.reset(token)


def counted() -> bool:
    """Whether rows were counted for the plan in the making."""
    return _given.get() is not None


def wanted(selection: Selection) -> int:
    """Return how many rows of a selection the plan in the making keeps."""
    return min((_given.get() or {}).get(selection.name, selection.rows), selection.rows)


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
    needed, found = set(values), set()
    allowed = set(by_role(graph, Role.INPUT, Role.LABEL))
    for node in reversed(graph):
        if any(v in needed for v in node.outputs):
            if node.op_type in RANDOM:
                return None
            needed.update(reads(node))
    for value in needed:
        if value.is_graph_input():
            if value not in allowed:
                return None
            found.add(value)
    return [v for v in graph.inputs if v in found]


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
    made = extract(model, inputs, values)
    op = Builder(made.graph)
    with op.arithmetic():
        keep = condition(op, list(made.graph.outputs))
    if keep.const_value is not None:
        return None
    made.graph.outputs[:] = [keep]
    return made


def counting(model: ir.Model, selections: Sequence[Selection]) -> ir.Model:
    """Return what counts rows of a batch: from inputs of the model to a 0-d int64 for each selection, by its name."""
    needed = {v.name for one in selections for v in one.keep.graph.inputs}
    made = new_model([clone_value(v) for v in model.graph.inputs if v.name in needed], "rows")
    op = Builder(made.graph)
    for one in selections:
        count = op.ReduceSum(op.Cast(one.condition(op), to=ir.DataType.INT64), keepdims=0)
        count.name = op.fresh(one.name)
        made.graph.outputs.append(count)
    for value in made.graph.inputs:
        set_role(value, Role.INPUT)
    return made


def rows_of(value: ir.Value) -> int:
    """Return how many elements a value has."""
    count = 1
    for size in static_dims(value):
        count *= size
    return count
