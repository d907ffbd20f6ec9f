"""A graph as regions and steps, and the graphs inside it as programs of the same kind."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Mapping

import onnx_ir as ir

from ontrain.graph import live_nodes
from ontrain.inference.stepwise.control import CONTROL, Control
from ontrain.inference.stepwise.derivatives import with_ways
from ontrain.inference.stepwise.elsewhere import Elsewhere
from ontrain.inference.stepwise.engine import Engine
from ontrain.inference.stepwise.partition import Kind, Stage, dying, partition
from ontrain.inference.stepwise.region import Region
from ontrain.inference.stepwise.search import SEARCHES
from ontrain.inference.stepwise.step import Environment, Step
from ontrain.inference.stepwise.values import Value
from ontrain.inference.stepwise.whole import Whole
from ontrain.rounds import stop_if_asked

__all__ = ["Program"]


class Program:
    """Runs a graph that no plan holds whole.

    Several threads may run it at the same time.

    Args:
        graph: whose constants have values; left untouched.
        engine: what runs its regions.
        outermost: whether it is the graph of the file, whose branches and loops may run as a whole each.

    Raises:
        GraphError: the graph asks for a derivative through a step.
    """

    def __init__(self, graph: ir.Graph, engine: Engine, *, outermost: bool = False) -> None:
        self.inputs, self.outputs = list(graph.inputs), list(graph.outputs)
        self._engine, self._outermost = engine, outermost
        nodes = live_nodes(graph)
        stages = with_ways(partition(nodes, engine.lacks))
        outside = set(self.outputs)
        runners: list[Region | Step | Control | Elsewhere] = []
        for stage in reversed(stages):
            runner = self._runner(stage, outside)
            outside |= set(runner.reads)
            runners.append(runner)
        self._stages = runners[::-1]
        self._dead = dying([[*runner.reads, *runner.outputs] for runner in self._stages], self.outputs)
        self.reads = [value for value in outside if value not in self._made()]

    def _made(self) -> set[ir.Value]:
        return {*self.inputs, *(value for stage in self._stages for value in stage.outputs)}

    def _runner(self, stage: Stage, wanted: set[ir.Value]) -> Region | Step | Control | Elsewhere:
        outputs = [value for node in stage.nodes for value in node.outputs if value in wanted]
        if stage.kind is Kind.PLAN:
            return Region(stage.nodes, outputs, self._engine)
        if stage.kind is Kind.ELSEWHERE:
            assert self._engine.following is not None
            return Elsewhere(stage.nodes, outputs, self._engine, self._engine.following)
        (node,) = stage.nodes
        kind = SEARCHES.get(node.op_type) if node.domain else CONTROL.get(node.op_type)
        if kind is None:
            return Step(node, self._engine)
        control = kind(node, self._engine, Program)
        if self._outermost:
            control.whole = Whole.of(node, self._engine)
        return control

    def assignment(self) -> list[tuple[bool, list[ir.Node]]]:
        """Return the nodes as they run, neighbours together, and whether another provider has them."""
        pieces = [piece for stage in self._stages for piece in _pieces(stage)]
        return [
            (elsewhere, [node for _, nodes in run for node in nodes])
            for elsewhere, run in itertools.groupby(pieces, operator.itemgetter(0))
        ]

    def run(self, values: Mapping[ir.Value, Value]) -> list[Value]:
        """Compute the outputs from the inputs, and from what the graph reads of those around it."""
        environment: Environment = dict(values)
        for stage, dead in zip(self._stages, self._dead, strict=True):
            stop_if_asked()
            stage.run(environment)
            for value in dead:
                environment.pop(value, None)
        return [environment[value] if value in environment else self._engine.resident(value) for value in self.outputs]


def _pieces(stage: Region | Step | Control | Elsewhere) -> Iterator[tuple[bool, list[ir.Node]]]:
    if isinstance(stage, Region) and stage.parts is not None:
        for part in stage.parts:
            yield from _pieces(part)
    elif isinstance(stage, Region | Elsewhere):
        yield isinstance(stage, Elsewhere), stage.nodes
    else:
        yield False, [stage.node]
        if isinstance(stage, Control):
            for program in stage.programs.values():
                yield from program.assignment()
