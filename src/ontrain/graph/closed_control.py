"""If, Loop and Scan where shapes are numbers: a branch taken, iterations written out, or a closed composite."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import onnx_ir as ir

from ontrain.errors import GraphError
from ontrain.graph.builder import Builder
from ontrain.graph.control import choose, repeat
from ontrain.graph.counted_loops import known_rounds, unchanged
from ontrain.graph.plain_control import scan_axes
from ontrain.graph.replay import Replay
from ontrain.graph.source import describe, shape_text, source_of
from ontrain.graph.subgraphs import captured, live_nodes, subgraphs
from ontrain.operators import static_dims

__all__ = ["closed"]


_Write = Callable[[Replay, ir.Node, list[ir.Value | None]], list[ir.Value]]
_writes: dict[str, _Write] = {}


def _closes(op_type: str) -> Callable[[_Write], _Write]:
    return lambda write: _writes.setdefault(op_type, write)


def closed(replay: Replay, node: ir.Node, inputs: list[ir.Value | None]) -> Sequence[ir.Value | None]:
    """Write what If, Loop or Scan computes without outer values read from within. Fits `Replay`.

    Raises:
        GraphError: shapes depend on the data; names the node.
    """
    write = _writes.get(node.op_type)
    if write is None:
        raise GraphError(f"{node.op_type} with a graph inside is unknown", node=describe(node), source=source_of(node))
    try:
        return write(replay, node, inputs)
    except GraphError as error:
        if error.node is not None:
            raise
        raise GraphError(
            error.problem, node=describe(node), source=source_of(node), reason=error.reason, way_out=error.way_out
        ) from error


def _outer(replay: Replay, node: ir.Node) -> tuple[list[ir.Value], list[ir.Value]]:
    """The outer values that the node's graphs read, in the old graph and in the new; constants are made inside."""
    olds = [value for value in captured(node) if value.const_value is None]
    return olds, [replay.find(value) for value in olds]


@_closes("If")
def _if(replay: Replay, node: ir.Node, inputs: list[ir.Value | None]) -> list[ir.Value]:
    (cond,) = inputs
    assert cond is not None
    then, other = node.attributes["then_branch"].value, node.attributes["else_branch"].value
    if cond.const_value is not None:
        taken = then if bool(cond.const_value.numpy().all()) else other
        return replay.inner(replay.op, {}).outputs(taken)
    olds, values = _outer(replay, node)

    def branch(graph: ir.Graph) -> Callable[[Builder, Sequence[ir.Value]], list[ir.Value]]:
        return lambda op, outer: replay.inner(op, dict(zip(olds, outer, strict=True))).outputs(graph)

    if cond.shape is not None and len(cond.shape):
        cond = replay.op.Reshape(cond, np.array([], np.int64))
    return [*choose(replay.op, cond, branch(then), branch(other), values)]


@_closes("Loop")
def _loop(replay: Replay, node: ir.Node, inputs: list[ir.Value | None]) -> list[ir.Value]:
    (graph,) = subgraphs(node)
    trip, cond, *carried = [*inputs, None, None][: max(2, len(inputs))]
    op = replay.op
    trip, cond = (None if v is None else op.Reshape(v, np.array([], np.int64)) if v.shape else v for v in (trip, cond))
    rounds = known_rounds(replay, graph, trip, cond, carried)
    if rounds is not None:
        trip, cond = op.const(rounds, ir.DataType.INT64), None
    olds, values = _outer(replay, node)
    n, live = len(carried), live_nodes(graph)
    fixed = unchanged(graph)
    changing = [i for i in range(n) if i not in fixed]
    states, outer = _present(carried[i] for i in changing), [*values, *_present(carried[i] for i in fixed)]
    formals = [*olds, *(graph.inputs[2 + i] for i in fixed)]

    def body(
        op: Builder, at: ir.Value, states: Sequence[ir.Value], rows: object, outer: Sequence[ir.Value]
    ) -> tuple[ir.Value | None, list[ir.Value], list[ir.Value]]:
        bound = dict(zip(formals, outer, strict=True))
        bound.update(zip(graph.inputs[:2], [at, op.const(np.array(True))], strict=True))
        bound.update(zip((graph.inputs[2 + i] for i in changing), states, strict=True))
        inner = replay.inner(op, bound, naming=False)
        inner.run(live)
        go, *outs = (inner.find(value) for value in graph.outputs)
        return None if rounds is not None else go, [outs[i] for i in changing], outs[n:]

    nexts, stacked = repeat(op, body, trip=trip, cond=cond, carried=states, captured=outer)
    last = dict(zip((*fixed, *changing), (*outer[len(values) :], *nexts), strict=True))
    for value, use in zip(stacked, node.outputs[n:], strict=False):
        if use.uses() or use.is_graph_output():
            _check_stacked(value)
    return [*(last[i] for i in range(n)), *stacked]


def _check_stacked(value: ir.Value) -> None:
    """Refuse what a loop stacks as often as its data say."""
    if value.shape is not None and not value.shape.is_static():
        raise GraphError(
            f"a loop stacks {shape_text(value)}, and how often it runs depends on the data",
            reason="a plan has one shape for each value",
            way_out="give the loop a constant length, or read only what it hands on",
        )


@_closes("Scan")
def _scan(replay: Replay, node: ir.Node, inputs: list[ir.Value | None]) -> list[ir.Value]:
    (graph,) = subgraphs(node)
    op, m = replay.op, node.attributes["num_scan_inputs"].as_int()
    n = len(inputs) - m
    operands = _present(inputs)
    axes, directions = scan_axes(node, "scan_input_axes", m), scan_axes(node, "scan_input_directions", m)
    rows = [_arranged(op, v, a, d) for v, a, d in zip(operands[n:], axes, directions, strict=True)]
    length = static_dims(rows[0])[0]
    if any(static_dims(row)[0] != length for row in rows):
        raise GraphError("the scanned inputs differ in length", reason=", ".join(shape_text(v) for v in operands[n:]))
    olds, values = _outer(replay, node)
    live = live_nodes(graph)

    def body(
        op: Builder, at: object, states: Sequence[ir.Value], rows: Sequence[ir.Value], outer: Sequence[ir.Value]
    ) -> tuple[None, list[ir.Value], list[ir.Value]]:
        mapped = dict(zip(olds, outer, strict=True))
        mapped.update(zip(graph.inputs, [*states, *rows], strict=True))
        inner = replay.inner(op, mapped, naming=False)
        inner.run(live)
        outs = [inner.find(value) for value in graph.outputs]
        return None, outs[:n], outs[n:]

    finals, stacked = repeat(op, body, trip=length, carried=operands[:n], scanned=rows, captured=values)
    k = len(stacked)
    axes, directions = scan_axes(node, "scan_output_axes", k), scan_axes(node, "scan_output_directions", k)
    return [*finals, *(_put_back(op, v, a, d) for v, a, d in zip(stacked, axes, directions, strict=True))]


def _arranged(op: Builder, value: ir.Value, axis: int, direction: int) -> ir.Value:
    """The scanned axis first, in the order of the iterations."""
    rank = len(static_dims(value))
    axis %= rank
    if axis:
        value = op.Transpose(value, perm=[axis, *(i for i in range(rank) if i != axis)])
    return _flipped(op, value) if direction else value


def _put_back(op: Builder, value: ir.Value, axis: int, direction: int) -> ir.Value:
    value = _flipped(op, value) if direction else value
    rank = len(static_dims(value))
    axis %= rank
    if axis:
        order = [*range(1, axis + 1), 0, *range(axis + 1, rank)]
        value = op.Transpose(value, perm=order)
    return value


def _flipped(op: Builder, value: ir.Value) -> ir.Value:
    reversed_rows: ir.Value = op.Slice(value, [-1], [np.iinfo(np.int64).min], [0], [-1])
    return reversed_rows


def _present(values: Iterable[ir.Value | None]) -> list[ir.Value]:
    present = [*values]
    assert all(v is not None for v in present)
    return [v for v in present if v is not None]
