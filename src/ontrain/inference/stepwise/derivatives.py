"""Derivatives that a graph of regions and steps asks for: what lies between a value and its points is in one region."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ontrain.autodiff import is_derivative
from ontrain.errors import GraphError
from ontrain.functions import VJP
from ontrain.graph import describe, reads, source_of
from ontrain.inference.stepwise.partition import Kind, Stage
from ontrain.operators import record_of, zero_gradient_of

__all__ = ["with_ways"]


def with_ways(stages: Sequence[Stage]) -> list[Stage]:
    """Return the stages, those with a derivative with all nodes that it flows back through.

    Nodes of an earlier region are computed again beside the derivative, which sees of other regions numbers alone.

    Raises:
        GraphError: it would flow back through a step, whose sizes no plan has.
    """
    home = {node: stage for stage in stages for node in stage.nodes}
    extended = []
    for stage in stages:
        way: set[ir.Node] = set()
        for node in stage.nodes:
            if is_derivative(node):
                way |= _way(node, list(home))
        blocking = next((node for node in home if node in way and home[node].kind is not Kind.PLAN), None)
        if blocking is not None:
            raise GraphError(
                f"a Gradient flows back through {blocking.op_type}, which runs as a step", node=describe(blocking),
                source=source_of(blocking), reason="its sizes are known only when it runs, or it holds a graph",
                way_out="select by NonZero and GatherND or Gather, give sizes as constants, or mask by Where",
            )  # fmt: skip
        earlier = [node for node in home if node in way and home[node] is not stage]
        extended.append(Stage([*earlier, *stage.nodes], stage.kind))
    return extended


def _way(derivative: ir.Node, nodes: Sequence[ir.Node]) -> set[ir.Node]:
    """The nodes through which a derivative flows from its values back to its points; `nodes` are in order."""
    inputs = [value for value in derivative.inputs if value is not None]
    count = derivative.attributes.get_int("count", 1) or 1
    values, points = (inputs[:count], inputs[2 * count :]) if derivative.op_type == VJP else (inputs[:1], inputs[1:])
    moved, carrying = set(points), list[ir.Node]()
    for node in nodes:
        if not zero_gradient_of(node.domain, node.op_type) and not moved.isdisjoint(_flows(node)):
            carrying.append(node)
            moved.update(node.outputs)
    wanted, way = set(values) - set(points), set[ir.Node]()
    for node in reversed(carrying):
        if not wanted.isdisjoint(node.outputs):
            way.add(node)
            wanted.update(value for value in _flows(node) if value in moved and value not in points)
    return way


def _flows(node: ir.Node) -> list[ir.Value]:
    """What a node reads and may flow back to: not its sizes, axes and modes."""
    settings = {node.inputs[i] for i in record_of(node).settings if i < len(node.inputs)}
    return [] if record_of(node).reads_shape else [value for value in reads(node) if value not in settings]
