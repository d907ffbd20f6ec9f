"""Branches and loops with closed bodies: composites that name every value they read.

The standard's If, Loop and Scan read outer values from within. Specialising a graph turns them into the composites

    If(cond, *captured)                                     then_branch, else_branch
    Loop(trip, cond, *carried, *scanned, *captured)         body, carried, scanned, reverse

whose graphs take all they read as inputs. Uses, lifetimes and gradients are then those of any other operator. A body of
Loop maps (iteration, *carried, a row of each scanned, *captured) to (cond, *carried, *rows); the rows of all
iterations are stacked to outputs. With `reverse` the iterations are numbered trip − 1 … 0, and so are the rows.
Without `cond`, and with a body whose cond is true, exactly `trip` iterations run. Otherwise the last carried value
counts them, from 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import onnx_ir as ir

from ontrain.errors import GraphError
from ontrain.graph.builder import Builder
from ontrain.graph.infer import TypeAndShape, register_inference
from ontrain.graph.replay import as_outputs, emit
from ontrain.graph.source import shape_text
from ontrain.graph.subgraphs import all_nodes, captured, live_nodes, subgraphs
from ontrain.operators import DOMAIN, OPSET, Attribute, Chance, Operand, Value, dims, each, record_of, static_dims

__all__ = ["LoopBody", "UNROLL_LIMIT", "choose", "draws_random", "follows_from_random", "iterate", "repeat", "trace"]

UNROLL_LIMIT = 1000
"""Nodes up to which a loop of known length is unrolled: planning takes time for each node, a kept loop only once."""
_MOST_DISCARDED = 4 * UNROLL_LIMIT
"""Nodes that the iterations of a loop may write and throw away while it is unrolled."""

LoopBody = Callable[..., tuple[ir.Value | None, Sequence[ir.Value], Sequence[ir.Value]]]
"""body(op, iteration, carried, rows, captured): the condition to go on (None: always), carried values, rows."""

_INT64, _SCALAR = ir.DataType.INT64, ir.Shape([])


def trace(
    body: Callable[[Builder, list[ir.Value]], Sequence[ir.Value]], like: Sequence[ir.Value], name: str = "body"
) -> ir.Graph:
    """Return the closed graph that `body(op, inputs)` writes, with an input for each of `like`.

    A constant among `like` is a constant inside too; its input stands unused.
    """
    graph = ir.Graph([], [], nodes=[], opset_imports={"": OPSET, DOMAIN: 1}, name=name)
    op = Builder(graph)
    formals: list[ir.Value] = []
    for i, value in enumerate(like):
        formal = ir.Value(name=op.fresh(f"in_{i}"), shape=value.shape, type=value.type)
        graph.inputs.append(formal)
        const = value.const_value
        formals.append(formal if const is None else op.const(const.numpy()))
    with op.arithmetic():
        results = body(op, formals)
    graph.outputs.extend(as_outputs(op, results))
    live = set(live_nodes(graph))
    graph.remove([node for node in graph if node not in live], safe=True)
    for name_, value in list(graph.initializers.items()):
        if not value.uses():
            del graph.initializers[name_]
    return graph


def choose(
    op: Builder, cond: ir.Value, then: Callable[[Builder, list[ir.Value]], Sequence[ir.Value]],
    other: Callable[[Builder, list[ir.Value]], Sequence[ir.Value]], captured: Sequence[ir.Value],
) -> list[Value]:  # fmt: skip
    """Append the composite If; both branches are functions of (op, captured values).

    Raises:
        GraphError: the branches give results of different types or shapes.
    """
    graphs = [trace(branch, captured, name) for branch, name in ((then, "then"), (other, "else"))]
    for a, b in zip(graphs[0].outputs, graphs[1].outputs, strict=True):
        if a.dtype != b.dtype or a.shape is None or b.shape is None or tuple(a.shape) != tuple(b.shape):
            raise GraphError(
                f"one branch of an If gives {shape_text(a)}, the other {shape_text(b)}",
                reason="a plan has one shape for each value, and the condition depends on the data",
                way_out="let both branches give the same shape, or make the condition a constant",
            )
    used = [i for i in range(len(captured)) if any(graph.inputs[i].uses() for graph in graphs)]
    for graph in graphs:
        _keep_inputs(graph, used)
    return _call(op, "If", [cond, *(captured[i] for i in used)], len(graphs[0].outputs),
                 then_branch=graphs[0], else_branch=graphs[1])  # fmt: skip


def repeat(
    op: Builder, body: LoopBody, *, trip: ir.Value | int | None, carried: Sequence[ir.Value],
    scanned: Sequence[ir.Value] = (), captured: Sequence[ir.Value] = (), cond: ir.Value | None = None,
    reverse: bool = False,
) -> tuple[list[Value], list[Value]]:  # fmt: skip
    """Append a loop: unrolled where its length is known and it is small, else the composite Loop.

    Args:
        op: where to append.
        body: one iteration, see `LoopBody`.
        trip: the most iterations to run; None for no limit.
        carried: values that the iterations hand on; their shapes stay.
        scanned: values of which each iteration reads one row of the first axis.
        captured: other values that the body reads.
        cond: whether to run the first iteration; None for yes.
        reverse: run from the last iteration to the first; the number of iterations must then be known.

    Returns:
        The carried values at the end, and the rows of all iterations stacked along a new first axis.

    Raises:
        GraphError: the shape of a carried value changes from one iteration to the next.
    """
    if trip is None or isinstance(trip, int):
        trip = op.const(np.array(np.iinfo(np.int64).max if trip is None else trip, np.int64))
    cond = None if cond is not None and _is_true(cond) else cond
    if trip.const_value is not None and (cond is None or cond.const_value is not None):
        known = 0 if cond is not None else max(0, int(trip.const_value.numpy().item()))
        done = _unrolled(op, body, known, carried, scanned, captured, reverse) if known else None
        if done is not None:
            return done
        if cond is not None:
            trip, cond = op.const(np.array(0, np.int64)), None
    rows = [_row(value) for value in scanned]
    like = [ir.Value(shape=_SCALAR, type=ir.TensorType(_INT64)), *(_variable(v) for v in carried), *rows, *captured]
    n, m, counts = len(carried), len(scanned), False

    def write(inner: Builder, formals: list[ir.Value]) -> list[ir.Value]:
        nonlocal counts
        go, nexts, outs = body(inner, formals[0], formals[1 : 1 + n], formals[1 + n : 1 + n + m], formals[1 + n + m :])
        counts = cond is not None or (go is not None and not _is_true(go))
        return [inner.const(np.array(True)) if go is None else go, *nexts, *outs]

    graph = trace(write, like)
    _check_carried(graph, carried)
    if counts:
        graph, carried = _counted(op, graph, carried)
    finals, stacked = iterate(op, graph, trip, cond if counts else None, carried, scanned, captured, reverse=reverse)
    return finals[:n], stacked


def iterate(
    op: Builder, body: ir.Graph, trip: ir.Value, cond: ir.Value | None, carried: Sequence[ir.Value],
    scanned: Sequence[ir.Value | None], captured: Sequence[ir.Value], *, reverse: bool = False,
) -> tuple[list[Value], list[Value]]:  # fmt: skip
    """Append the composite Loop over a ready body; what the body does not read is left out, None among `scanned` too.

    Returns:
        The carried values at the end, and the stacked rows.
    """
    n, m = len(carried), len(scanned)
    rest: list[ir.Value | None] = [*scanned, *captured]
    used = [i for i in range(len(rest)) if rest[i] is not None and body.inputs[1 + n + i].uses()]
    _keep_inputs(body, [*range(1 + n), *(1 + n + i for i in used)])
    operands = [trip, cond, *carried, *(rest[i] for i in used)]
    results = _call(op, "Loop", operands, len(body.outputs) - 1, body=body, carried=n,
                 scanned=sum(i < m for i in used), reverse=int(reverse))  # fmt: skip
    return results[:n], results[n:]


def draws_random(graph: ir.Graph) -> ir.Node | None:
    """Return a node inside that draws random numbers, or None."""
    return next((node for node in all_nodes(graph) if is_random(node)), None)


def follows_from_random(value: ir.Value) -> bool:
    """Whether random numbers are drawn for a value."""
    waiting, seen = [value], set[ir.Value]()
    while waiting:
        producer = waiting.pop().producer()
        if producer is None:
            continue
        if is_random(producer) or any(is_random(node) for inner in subgraphs(producer) for node in all_nodes(inner)):
            return True
        news = [v for v in (*producer.inputs, *captured(producer)) if v is not None and v not in seen]
        seen.update(news)
        waiting += news
    return False


def follows_from_sizes_alone(value: ir.Value) -> bool:
    """Whether a value reads no input of the graph but for its sizes, and no random numbers are drawn for it."""
    waiting, seen = [value], set[ir.Value]()
    while waiting:
        value = waiting.pop()
        producer = value.producer()
        if producer is None:
            if value.const_value is None:
                return False
            continue
        if is_random(producer) or subgraphs(producer):
            return False
        news = (
            [] if record_of(producer).reads_shape else [v for v in producer.inputs if v is not None and v not in seen]
        )
        seen.update(news)
        waiting += news
    return True


def is_random(node: ir.Node) -> bool:
    """Whether the operator itself draws random numbers, in the form that the node has."""
    chance = record_of(node).chance
    if chance is Chance.IN_TRAINING:
        ratio, training = ([*node.inputs, None, None])[1:3]
        return training is not None and not _is_false(training) and not (ratio is not None and _is_false(ratio))
    if chance is Chance.BY_ATTRIBUTE:
        return "dropout" in node.attributes and bool(node.attributes["dropout"].value > 0)
    return chance is Chance.ALWAYS


def _is_false(value: ir.Value) -> bool:
    return value.const_value is not None and not bool(value.const_value.numpy().any())


def _unrolled(
    op: Builder, body: LoopBody, count: int, carried: Sequence[ir.Value], scanned: Sequence[ir.Value],
    captured: Sequence[ir.Value], reverse: bool,
) -> tuple[list[Value], list[Value]] | None:  # fmt: skip
    """Write the iterations one after another; None, and nothing written, if they are many or their end is unknown."""
    if count > UNROLL_LIMIT and scanned:
        return None
    start, discarded = len(op.nodes), op.discarded
    states, collected = list(carried), []
    rows = [_rows(op, value) for value in scanned]
    order = range(count - 1, -1, -1) if reverse else range(count)
    for done, i in enumerate(order, 1):
        at = op.const(np.array(i, np.int64))
        go, nexts, outs = body(op, at, states, [row[i] for row in rows], captured)
        states = list(nexts)
        collected.append(list(outs))
        written = len(op.nodes) - start
        unknown = go is not None and go.const_value is None
        too_long = go is None and written * count > UNROLL_LIMIT * done  # a condition may still turn false before
        # Each iteration may try to unroll a loop inside it, in vain: that is work, too.
        in_vain = op.discarded - discarded > _MOST_DISCARDED
        if unknown or too_long or in_vain or max(written, done) > UNROLL_LIMIT:
            op.discard(start)
            return None
        if go is not None and not _is_true(go):
            break
    if reverse:
        collected.reverse()
    stacked = [_stack(op, list(column)) for column in zip(*collected, strict=True)]
    return cast(list[Value], states), stacked


def _rows(op: Builder, value: ir.Value) -> list[ir.Value]:
    (count,) = static_dims(ir.Value(name=value.name, shape=ir.Shape(list(dims(value))[:1])))
    parts = each(op.Split(value, axis=0, num_outputs=count, outputs=count)) if count > 1 else (value,)
    return [op.Squeeze(part, [0]) for part in parts]


def _stack(op: Builder, rows: Sequence[ir.Value]) -> Value:
    parts = [op.Unsqueeze(row, [0]) for row in rows]
    return op.Concat(*parts, axis=0) if len(parts) > 1 else parts[0]


def _row(value: ir.Value) -> ir.Value:
    return ir.Value(shape=ir.Shape(list(dims(value))[1:]), type=value.type)


def _variable(value: ir.Value) -> ir.Value:
    return ir.Value(shape=value.shape, type=value.type)


def _check_carried(graph: ir.Graph, carried: Sequence[ir.Value]) -> None:
    for before, after in zip(carried, graph.outputs[1:], strict=False):
        fits = before.dtype == after.dtype and before.shape is not None and after.shape is not None
        if not fits or tuple(dims(before)) != tuple(dims(after)):
            raise GraphError(
                f"what a loop hands on is {shape_text(before)} before an iteration and {shape_text(after)} after",
                reason="a plan has one shape for each value; only a loop that is unrolled may change it",
                way_out=f"give the loop a constant length of up to {UNROLL_LIMIT} nodes in all, or a fixed shape",
            )


def _counted(op: Builder, graph: ir.Graph, carried: Sequence[ir.Value]) -> tuple[ir.Graph, list[ir.Value]]:
    """The body with a counter as its last carried value."""
    n, start = len(carried), op.const(np.array(0, np.int64))
    like = [*graph.inputs[: 1 + n], _variable(start), *graph.inputs[1 + n :]]

    def write(inner: Builder, formals: list[ir.Value]) -> list[ir.Value]:
        outs = emit(inner, graph, [*formals[: 1 + n], *formals[2 + n :]])
        return [*outs[: 1 + n], inner.Add(formals[1 + n], 1), *outs[1 + n :]]

    return trace(write, like), [*carried, start]


def _keep_inputs(graph: ir.Graph, places: Sequence[int]) -> None:
    inputs = [graph.inputs[i] for i in places]
    graph.inputs.clear()
    graph.inputs.extend(inputs)


def _call(op: Builder, op_type: str, operands: Sequence[Operand], outputs: int, **attributes: Attribute) -> list[Value]:
    return list(each(op.call(DOMAIN, op_type, operands, attributes, outputs)))


def _is_true(value: ir.Value) -> bool:
    return value.const_value is not None and bool(value.const_value.numpy().all())


def _typed(value: ir.Value) -> TypeAndShape:
    assert value.dtype is not None and value.shape is not None
    return value.dtype, value.shape


def _infer_if(node: ir.Node) -> list[TypeAndShape]:
    return [_typed(value) for value in node.attributes["then_branch"].value.outputs]


def _infer_loop(node: ir.Node) -> list[TypeAndShape]:
    outputs = node.attributes["body"].value.outputs
    n, trip = node.attributes["carried"].as_int(), node.inputs[0]
    length = None if trip is None or node.inputs[1] is not None or _may_stop(outputs[0]) else trip.const_value
    count = None if length is None else max(0, int(length.numpy().item()))
    stacked = [(value.dtype, ir.Shape([count, *dims(value)])) for value in outputs[1 + n :]]
    return [*(_typed(value) for value in outputs[1 : 1 + n]), *stacked]


def _may_stop(cond: ir.Value) -> bool:
    producer = cond.producer()
    source = producer.inputs[0] if producer is not None and producer.op_type == "Identity" else cond
    return source is None or not _is_true(source)


register_inference("If", _infer_if)
register_inference("Loop", _infer_loop)
