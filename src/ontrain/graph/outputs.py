"""Outputs that a graph shall not compute."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import onnx_ir as ir

from ontrain.graph.control import draws_random, is_random
from ontrain.graph.halves import reads
from ontrain.graph.roles import updates_of
from ontrain.graph.subgraphs import live_nodes, subgraphs

__all__ = ["drop_outputs"]


def drop_outputs(graph: ir.Graph, keep: Collection[str]) -> dict[str, ir.Value]:
    """Take all results but these from a graph's outputs, in place, and what only they needed from its nodes.

    Inputs stay, and so do the next values of resident inputs. So does a result for which alone random numbers are
    drawn: without it the others would get other numbers from the same seed.

    Args:
        keep: names of outputs.

    Returns:
        The outputs dropped, by name; their shapes and dtypes are still to be read.
    """
    before = list(graph.outputs)
    dropped = {v for v in before if v.name not in keep and updates_of(v) is None}
    _set_outputs(graph, [v for v in before if v not in dropped])
    live = set(live_nodes(graph))
    lost = [node for node in graph if node not in live and _draws(node)]
    if lost:
        dropped -= _reached(graph, lost)
        _set_outputs(graph, [v for v in before if v not in dropped])
        live = set(live_nodes(graph))
    graph.remove([node for node in graph if node not in live], safe=False)
    return {v.name or "": v for v in before if v in dropped}


def _set_outputs(graph: ir.Graph, outputs: Iterable[ir.Value]) -> None:
    graph.outputs.clear()
    graph.outputs.extend(outputs)


def _draws(node: ir.Node) -> bool:
    return is_random(node) or any(draws_random(inner) is not None for inner in subgraphs(node))


def _reached(graph: ir.Graph, sources: Iterable[ir.Node]) -> set[ir.Value]:
    reached = {v for node in sources for v in node.outputs}
    for node in graph:
        if any(v in reached for v in reads(node)):
            reached.update(node.outputs)
    return reached
