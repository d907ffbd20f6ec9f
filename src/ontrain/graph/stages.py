"""Parts of a graph between the nodes whose results have sizes that follow from values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from ontrain.graph.control import is_random
from ontrain.graph.halves import reads
from ontrain.graph.roles import Role, role_of
from ontrain.graph.subgraphs import subgraphs
from ontrain.operators import record_of

__all__ = ["Stage", "is_sized_by_values", "stages", "step_of_adjoint"]


@dataclass(frozen=True)
class Stage:
    """Nodes that run together.

    Attributes:
        reads: values that the nodes take from the graph's inputs and from stages before, in order of first use.
        outputs: values that stages behind and the graph's outputs take from the nodes.
        step: the only node, if the sizes of its result are known when it has run; None where the sizes of all results
            follow from those of `reads`.
    """

    reads: list[ir.Value]
    outputs: list[ir.Value]
    step: ir.Node | None = None


def is_sized_by_values(graph: ir.Graph) -> bool:
    """Whether the size of some result in the graph follows from values."""
    settled = _settled(graph)
    return any(_is_step(node, settled) for node in graph)


def stages(graph: ir.Graph) -> list[Stage]:
    """Return the graph as stages, each of which reads what those before it make.

        h ─ Relu ─ GatherND(h, places) ─ MatMul     →   [Relu] , [NonZero] , [GatherND, MatMul]
        mask ─ NonZero ─ places

    A node lies in the first stage where all it reads is there; what is made of parameters alone, such as a transposed
    weight, in the first stage that reads it. What follows from shapes and constants alone is no part
    of a stage: each stage that needs it computes it of the shapes of what it reads. Only what a step reads of it, such
    as a mask that depends on the length alone, is made in a stage before. A backward of the user's own lies whole in
    the stage of its function's results: it is made again there, of the real adjoints.
    """
    settled = _settled(graph)
    level: dict[ir.Value, int] = {}
    for node in graph:
        at = _last(_sources(node, settled), level)
        if any(value not in settled for value in node.outputs):
            at += (1 - at % 2) if _is_step(node, settled) else at % 2
        level.update(dict.fromkeys(node.outputs, at))
    _sink(graph, settled, level)
    for end, trail in _backwards(graph):
        if not any(_is_step(node, settled) for node in trail):  # else only the forward half runs
            level.update(dict.fromkeys((v for node in trail for v in node.outputs), level[end.outputs[0]]))
    placed: dict[int, list[ir.Node]] = {}
    for node in graph:
        if any(value not in settled for value in node.outputs):
            placed.setdefault(level[node.outputs[0]], []).append(node)
    parts = [
        part for at in sorted(placed) for part in ([[n] for n in placed[at]] if at % 2 else [placed[at]])
    ]  # fmt: skip
    return _joined(graph, parts, settled)


def step_of_adjoint(graph: ir.Graph) -> ir.Node | None:
    """Return a node whose result has a size that follows from an adjoint's values, in a backward of the user's own."""
    settled = _settled(graph)
    return next((node for _, trail in _backwards(graph) for node in trail if _is_step(node, settled)), None)


def _backwards(graph: ir.Graph) -> Iterator[tuple[ir.Node, list[ir.Node]]]:
    """The ends of backwards of the user's own, each with what is computed of the adjoints, the outermost first.

    One within another is a part of it: its end is on the other's trail.
    """
    ends = [node for node in graph if record_of(node).adjoints is not None]
    readers: dict[ir.Value, list[ir.Node]] = {}
    for node in graph if ends else ():
        for value in reads(node):
            readers.setdefault(value, []).append(node)
    for end in reversed(ends):
        adjoints = record_of(end).adjoints
        assert adjoints is not None
        trail: dict[ir.Node, None] = {}
        producers = (value.producer() for value in adjoints(end) if value is not None)
        waiting = [producer for producer in producers if producer is not None]
        while waiting:
            node = waiting.pop()
            if node is not end and node not in trail:
                trail[node] = None
                waiting += [reader for value in node.outputs for reader in readers.get(value, ())]
        yield end, list(trail)


def _joined(graph: ir.Graph, parts: list[list[ir.Node]], settled: set[ir.Value]) -> list[Stage]:
    """Say of each part what it reads and what it gives.

    Results that follow from shapes are the last part's; or, behind a step whose result has the shape, a part of their
    own.
    """
    loose = [value for value in graph.outputs if value in settled or value.producer() is None]
    behind = list(dict.fromkeys(source for value in loose for source in _behind(value, settled)))
    wanted = [value for value in graph.outputs if value not in loose]
    cut: list[Stage] = []
    for nodes in reversed(parts):
        produced = {value for node in nodes for value in node.outputs}
        if loose and _is_step(nodes[0], settled) and not produced.isdisjoint(behind):
            cut.append(Stage(behind, loose))
            wanted += behind
            loose = []
        outputs = [value for value in dict.fromkeys(wanted) if value in produced]
        sources = [value for node in nodes for value in _sources(node, settled) if value not in produced]
        step = nodes[0] if _is_step(nodes[0], settled) else None
        if loose and step is None:
            outputs += loose
            sources += [source for source in behind if source not in produced]
            loose = []
        reads_ = list(dict.fromkeys(sources))
        cut.append(Stage(reads_, outputs, step))
        wanted += reads_
    if loose:
        cut.insert(0, Stage(behind, loose))
    return cut[::-1]


def _sink(graph: ir.Graph, settled: set[ir.Value], level: dict[ir.Value, int]) -> None:
    """Move nodes that only read parameters, and what they make of these, to the first stage that needs them."""
    inert = {value for value in graph.inputs if role_of(value) is Role.PARAMETER} | settled
    nodes = []
    for node in graph:
        if is_random(node) or _is_step(node, settled):
            continue
        if all(value in inert or value.const_value is not None for value in reads(node)):
            nodes.append(node)
            inert.update(node.outputs)
    for node in reversed(nodes):
        uses = [use.node for value in node.outputs for use in value.uses()]
        inside = any(use.graph is not graph for use in uses) or any(v.is_graph_output() for v in node.outputs)
        if uses and not inside and not all(value in settled for value in node.outputs):
            first = min(level[use.outputs[0]] for use in uses)
            level.update(dict.fromkeys(node.outputs, first - first % 2))


def _settled(graph: ir.Graph) -> set[ir.Value]:
    """Values that follow from shapes and constants, but for those that a step reads: a step computes nothing else."""
    settled = {value for value in graph.initializers.values() if value.const_value is not None}
    for node in graph:
        if is_random(node) or subgraphs(node):
            continue
        inputs = [value for value in node.inputs if value is not None]
        known = all(value in settled or value.const_value is not None for value in inputs)
        if record_of(node).reads_shape or (known and not record_of(node).sized_by_values):
            settled.update(node.outputs)
    for node in reversed(graph):
        if _is_step(node, settled):
            settled.difference_update(v for v in node.inputs if v is not None and v.const_value is None)
    return settled


def _is_step(node: ir.Node, settled: set[ir.Value]) -> bool:
    if node.op_type == "ConstantOfShape" and not node.domain:
        return node.outputs[0] not in settled
    return record_of(node).sized_by_values


def _sources(node: ir.Node, settled: set[ir.Value]) -> Iterator[ir.Value]:
    """What a node reads of inputs and stages, directly or through what follows from shapes."""
    for value in reads(node):
        yield from _behind(value, settled)


def _behind(value: ir.Value, settled: set[ir.Value]) -> Iterator[ir.Value]:
    waiting, seen = [value], set()
    while waiting:
        value = waiting.pop()
        if value in seen or value.const_value is not None:
            continue
        seen.add(value)
        producer = value.producer()
        if value in settled and producer is not None:
            waiting += reads(producer)
        else:
            yield value


def _last(values: Iterator[ir.Value], level: dict[ir.Value, int]) -> int:
    return max((level.get(value, 0) for value in values), default=0)
