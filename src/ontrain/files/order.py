"""Nodes in the order of what they read: the standard asks for it, and tools of onnxruntime write files without it."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import onnx

from ontrain.files.inner_graphs import allowed_subgraphs
from ontrain.limits import NESTING

__all__ = ["in_order"]


def in_order(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with each node of the main graph behind those that it reads.

    A model in order is returned itself; of another a copy, in which nodes that were in order stay so. Nodes that read
    each other in a circle stand last, as the file has them. Subgraphs and functions stay as they are: onnxruntime
    refuses those that are out of order.
    """
    if _is_sorted(proto.graph.node):
        return proto
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    del copy.graph.node[:]
    copy.graph.node.extend(proto.graph.node[i] for i in _order(proto.graph.node))
    return copy


def _reads(node: onnx.NodeProto, depth: int = 0) -> set[str]:
    """Names that a node reads, and its subgraphs from around them."""
    names = set(node.input)
    for graph in allowed_subgraphs(node) if depth <= NESTING else ():  # the check of a file refuses what is deeper
        own = {value.name for value in (*graph.input, *graph.initializer)}
        own.update(output for inner in graph.node for output in inner.output)
        inside = {value.name for value in graph.output}.union(*(_reads(inner, depth + 1) for inner in graph.node))
        names |= inside - own
    return names


def _is_sorted(nodes: Sequence[onnx.NodeProto]) -> bool:
    later = {output for node in nodes for output in node.output if output}
    for node in nodes:
        if not later.isdisjoint(_reads(node)):
            return False
        later.difference_update(node.output)
    return True


def _order(nodes: Sequence[onnx.NodeProto]) -> list[int]:
    """Indices of the nodes: of those whose operands are there the first in the file is next."""
    makers = {output: i for i, node in enumerate(nodes) for output in node.output if output}
    waits = [{makers[name] for name in _reads(node) if name in makers} for node in nodes]
    readers: list[list[int]] = [[] for _ in nodes]
    for i, needed in enumerate(waits):
        for maker in needed:
            readers[maker].append(i)
    ready, order = [i for i, needed in enumerate(waits) if not needed], list[int]()
    while ready:
        order.append(heapq.heappop(ready))
        for reader in readers[order[-1]]:
            waits[reader].discard(order[-1])
            if not waits[reader]:
                heapq.heappush(ready, reader)
    return order + sorted(set(range(len(nodes))).difference(order))
