"""A graph with a backward pass, cut where the caller hands in the adjoints."""

from __future__ import annotations

import onnx_ir as ir

from ontrain.graph.roles import gradient_of
from ontrain.graph.subgraphs import captured

__all__ = ["halves", "reads"]


def reads(node: ir.Node) -> list[ir.Value]:
    """Return the values that a node reads, those that its inner graphs capture included."""
    return [v for v in node.inputs if v is not None] + captured(node)


def halves(graph: ir.Graph) -> tuple[list[ir.Node], list[ir.Node]]:
    """Return the nodes that the outputs and updates depend on, and those that only gradients need; in graph order."""
    needed: set[ir.Value] = {v for v in graph.outputs if gradient_of(v) is None}
    forward: list[ir.Node] = []
    backward: list[ir.Node] = []
    for node in reversed(graph):
        if any(v in needed for v in node.outputs):
            forward.append(node)
            needed.update(reads(node))
        else:
            backward.append(node)
    return forward[::-1], backward[::-1]
