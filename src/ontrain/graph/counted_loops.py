"""What is known of a Loop before it runs: how often it does, and what it hands on unchanged.

A loop that a program wrote with `while` states no number of iterations. It hands on a counter and compares it:

    i = 0; while i < n: …; i = i + 1

Where n is known, as the length of a sequence is once sizes are, so is the number of iterations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.graph.builder import Builder
from ontrain.graph.replay import Replay
from ontrain.graph.subgraphs import subgraphs
from ontrain.operators import DOMAIN, OPSET

__all__ = ["known_rounds", "unchanged"]

Array = np.ndarray[Any, Any]

_MOST_NODES = 20_000
"""Nodes that are evaluated at most: those that the condition follows from, in all iterations."""


def known_rounds(
    replay: Replay, graph: ir.Graph, trip: ir.Value | None, go: ir.Value | None, carried: Sequence[ir.Value | None]
) -> int | None:
    """Return how often a loop runs, by running what its condition follows from; None where that depends on data.

    Args:
        replay: of the graph around the loop.
        graph: the body; maps (iteration, condition, *carried) to (condition, *carried, *rows).
        trip: the most iterations, in the new graph; None for no limit.
        go: whether the first iteration runs, in the new graph; None for yes.
        carried: the first carried values, in the new graph.
    """
    limit, goes = _number(trip), _number(go)
    if (trip is not None and limit is None) or (go is not None and goes is None):
        return None
    if goes is not None and not bool(goes.all()):
        return 0
    most = None if limit is None else max(0, int(limit.item()))
    sources = _sources(graph)
    if sources is None:
        return None
    nodes, places = sources
    values = [_number(carried[place]) for place in places]
    done = 0
    while nodes and (most is None or done < most) and (done + 1) * len(nodes) <= _MOST_NODES:
        if any(value is None for value in values):
            return None
        condition, *values = _round(replay, graph, nodes, places, [done, *values])
        if condition is None:
            return None
        done += 1
        if not bool(condition.all()):
            return done
    return done if nodes and done == most else None


def _number(value: ir.Value | None) -> Array | None:
    return None if value is None or value.const_value is None else value.const_value.numpy()


def _round(
    replay: Replay, graph: ir.Graph, nodes: list[ir.Node], places: list[int], numbers: Sequence[Any]
) -> list[Array | None]:
    """The condition after an iteration and what it hands on in some places; None for what is not known.

    Args:
        replay, graph: of the loop.
        nodes: of the body, that these follow from.
        places: of carried values.
        numbers: which iteration it is, and those values before it.
    """
    op = Builder(ir.Graph([], [], nodes=[], opset_imports={"": OPSET, DOMAIN: 1}))
    known: dict[ir.Value, ir.Value] = {graph.inputs[0]: op.const(numbers[0], ir.DataType.INT64)}
    for place, number in zip(places, numbers[1:], strict=True):
        known[graph.inputs[2 + place]] = op.const(number)
    inner = replay.inner(op, known, naming=False)
    inner.run(nodes)
    return [_number(inner.find(graph.outputs[at])) for at in (0, *(1 + place for place in places))]


def unchanged(graph: ir.Graph) -> list[int]:
    """Return the places of carried values that each iteration hands on as they came.

    Args:
        graph: the body of a Loop of the standard.
    """
    count = len(graph.inputs) - 2
    return [i for i in range(count) if _source(graph.outputs[1 + i]) is graph.inputs[2 + i]]


def _source(value: ir.Value) -> ir.Value | None:
    """What a value is a copy of."""
    source: ir.Value | None = value
    while source is not None and (node := source.producer()) is not None and node.op_type == "Identity":
        source = node.inputs[0]
    return source


def _sources(graph: ir.Graph) -> tuple[list[ir.Node], list[int]] | None:
    """The nodes that the body's condition follows from, and the places of carried values among what they read.

    None where it follows from a branch or loop inside, or from whether the iteration before went on.
    """
    waiting, seen = [graph.outputs[0]], set[ir.Value]()
    nodes, places = set[ir.Node](), set[int]()
    at = {value: place for place, value in enumerate(graph.inputs)}
    while waiting:
        value = waiting.pop()
        if value in seen or value.const_value is not None:
            continue
        seen.add(value)
        producer, place = value.producer(), at.get(value)
        if place == 1 or (producer is not None and subgraphs(producer)):
            return None
        if place is not None and place > 1:
            places.add(place - 2)
            waiting.append(graph.outputs[place - 1])
        elif producer is not None and producer.graph is graph:
            nodes.add(producer)
            waiting += [operand for operand in producer.inputs if operand is not None]
    return [node for node in graph if node in nodes], sorted(places)
