"""Graphs inside nodes: the branches of If, the bodies of Loop and Scan, and the outer values that they read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx_ir as ir

__all__ = ["all_nodes", "captured", "drop_dead_nodes", "every_node", "graphs_in", "live_nodes", "subgraphs"]

_GRAPH = ir.AttributeType.GRAPH
_GRAPHS = _GRAPH, ir.AttributeType.GRAPHS


def subgraphs(node: ir.Node) -> list[ir.Graph]:
    """Return the graphs among the node's attributes."""
    attributes = node.attributes.data  # the dictionary itself: plans ask this of every node many times
    return [attr.value for attr in attributes.values() if attr.type is _GRAPH] if attributes else []


def graphs_in(attr: ir.Attr) -> list[ir.Graph]:
    """Return the graph, or the graphs, that an attribute holds."""
    if attr.type == _GRAPH:
        return [attr.as_graph()]
    return list(attr.as_graphs()) if attr.type == ir.AttributeType.GRAPHS else []


def all_nodes(graph: ir.Graph) -> Iterator[ir.Node]:
    """Walk the nodes of a graph and of the graphs inside them, each node before those inside it."""
    for node in graph:
        yield node
        for inner in subgraphs(node):
            yield from all_nodes(inner)


def every_node(graph: ir.Graph | ir.Function) -> Iterator[ir.Node]:
    """Walk the nodes of a graph as `all_nodes` does, those in lists of graphs, too, which no operator of ours has.

    It does what onnx-ir's own iterator does in a third of the time.
    """
    for node in graph:
        yield node
        for attr in node.attributes.data.values():
            if attr.type in _GRAPHS and not attr.is_ref():
                for inner in graphs_in(attr):
                    yield from every_node(inner)


def captured(node: ir.Node) -> list[ir.Value]:
    """Return the outer values that the node's graphs read without naming them as inputs, in order of first use."""
    outer: dict[ir.Value, None] = {}
    for graph in subgraphs(node):
        _collect(graph, set(), outer)
    return list(outer)


def _collect(graph: ir.Graph, defined: set[ir.Value], outer: dict[ir.Value, None]) -> None:
    defined = defined.union(graph.inputs, graph.initializers.values())

    def read(values: Iterable[ir.Value | None]) -> None:
        for value in values:
            if value is not None and value not in defined:
                outer[value] = None

    for node in graph:
        read(node.inputs)
        for inner in subgraphs(node):
            _collect(inner, defined, outer)
        defined.update(node.outputs)
    read(graph.outputs)


def live_nodes(graph: ir.Graph) -> list[ir.Node]:
    """Return the nodes that some output depends on, in graph order."""
    needed: set[ir.Value | None] = set(graph.outputs)
    nodes: list[ir.Node] = []
    for node in reversed(graph):
        if not needed.isdisjoint(node.outputs):
            nodes.append(node)
            needed.update(node.inputs)
            if subgraphs(node):
                needed.update(captured(node))
    return nodes[::-1]


def drop_dead_nodes(graph: ir.Graph) -> None:
    """Remove the nodes that no output depends on, in place."""
    live = set(live_nodes(graph))
    graph.remove([node for node in graph if node not in live], safe=True)
