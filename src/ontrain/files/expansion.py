"""How large a model becomes when its functions are inlined, counted without inlining."""

from __future__ import annotations

import graphlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import onnx

from ontrain.errors import GraphError
from ontrain.files.inner_graphs import subgraphs
from ontrain.limits import NESTING, NODE_LIMIT, node_limit

__all__ = ["call_depth", "check_expansion"]

_Key = tuple[str, str, str]
_BYTES = 1 << 29
"""Bytes that the nodes of functions may come to: a constant in a function is copied with each call of it."""
_UNWRITTEN = 1 << 31
"""Bytes from which on protobuf writes no message."""
_COUNTLESS = 10**18
"""Counts end here: forty thousand functions that double come to a number that no message holds."""


@dataclass(frozen=True)
class _Extent:
    """What nodes come to when each call among them is replaced by its body.

    Attributes:
        nodes: without calls.
        calls: of functions, those from function to function included.
        size: of all nodes, in bytes of the file.
        depth: functions that call one another in a row.
        nesting: graphs in graphs.
    """

    nodes: int = 0
    calls: int = 0
    size: int = 0
    depth: int = 0
    nesting: int = 0


def check_expansion(proto: onnx.ModelProto, name: str) -> None:
    """Check that inlining takes time and memory in proportion to the file.

    Functions that call each other twice a level double with each level: a file of a few bytes holds 2^40 nodes, or as
    many calls of a function without nodes. A branch with a call in it nests a graph deeper with each level.

    Raises:
        GraphError: a function calls itself or is there twice; or the nodes or calls are more than `node_limit`, their
            bytes too many, or their graphs too deep.
        OptionError: ONTRAIN_NODE_LIMIT is no whole number from 1.
    """
    if not proto.functions:
        return
    extent = _extent(proto.graph.node, _extents(proto, name))
    written = sum(1 for nodes in (proto.graph.node, *(f.node for f in proto.functions)) for _ in _walk(nodes))
    limit = node_limit(written)
    larger = f"set {NODE_LIMIT} to a larger number if the model is meant so"
    for count, things in ((extent.nodes, "nodes"), (extent.calls, "calls of functions")):
        if count > limit:
            raise GraphError(
                f"the functions of {name} expand to {_text(count)} {things}",
                reason=f"the file states {written} nodes; more than {limit} {things} are taken for an attack",
                way_out=larger,
            )
    if extent.size > _BYTES and extent.size > 2 * (stated := _size(proto)):
        raise GraphError(
            f"the functions of {name} expand to {_text(extent.size)} bytes",
            reason=f"the file has {stated}: the constants in a function are copied with each call of it",
            way_out="store large constants as initializers of the model, and hand them to the function as an input",
        )
    if extent.nesting > NESTING:
        raise GraphError(
            f"the functions of {name} expand to subgraphs nested {extent.nesting} deep",
            reason=f"more than {NESTING} are taken for an attack: each function calls the next in a branch or a loop",
            way_out="call them outside of branches and loops",
        )


def _size(proto: onnx.ModelProto) -> int:
    try:
        return int(proto.ByteSize())
    except Exception:  # noqa: BLE001 (protobuf's errors share no base; with its data, which were read from other files)
        return _UNWRITTEN


def call_depth(proto: onnx.ModelProto) -> int:
    """Return how many functions call one another in a row at most.

    Raises:
        GraphError: a function calls itself, or is there twice.
    """
    return _extent(proto.graph.node, _extents(proto, "the model")).depth


def _extents(proto: onnx.ModelProto, name: str) -> dict[_Key, _Extent]:
    """The extent of each function's body."""
    bodies = {_key(f.domain, f.name, f.overload): f.node for f in proto.functions}
    if len(bodies) != len(proto.functions):
        raise GraphError(f"{name} defines a function twice")
    extents: dict[_Key, _Extent] = {}
    for key in _order(
        {key: {_called(node) for node, _ in _walk(nodes)} & bodies.keys() for key, nodes in bodies.items()}
    ):
        extents[key] = _extent(bodies[key], extents)
    return extents


def _extent(nodes: Iterable[onnx.NodeProto], extents: dict[_Key, _Extent]) -> _Extent:
    """The extent of nodes that call functions of these extents."""
    count = calls = size = depth = nesting = 0
    for node, level in _walk(nodes):
        body = extents.get(_called(node))
        nesting = max(nesting, level + (body.nesting if body else 0))
        size += node.ByteSize() if not level else 0  # the graphs inside are of the node
        if body is None:
            count += 1
            continue
        count, calls, size = count + body.nodes, calls + 1 + body.calls, size + body.size
        depth = max(depth, 1 + body.depth)
    return _Extent(min(count, _COUNTLESS), min(calls, _COUNTLESS), min(size, _COUNTLESS), depth, nesting)


def _order(calls: dict[_Key, set[_Key]]) -> list[_Key]:
    """The functions, each after those that it calls."""
    try:
        return list(graphlib.TopologicalSorter(calls).static_order())
    except graphlib.CycleError as error:
        circle = " → ".join(f"{domain}.{name}" for domain, name, _ in error.args[1])
        raise GraphError("a function calls itself", reason=circle) from error


def _walk(nodes: Iterable[onnx.NodeProto], level: int = 0) -> Iterator[tuple[onnx.NodeProto, int]]:
    """The nodes and those of the graphs inside them, with the number of graphs around each."""
    # A message nests a hundred deep at most, so that recursion ends.
    for node in nodes:
        yield node, level
        for inner in subgraphs(node):
            yield from _walk(inner.node, level + 1)


def _called(node: onnx.NodeProto) -> _Key:
    return _key(node.domain, node.op_type, node.overload)


def _key(domain: str, name: str, overload: str) -> _Key:
    return "" if domain == "ai.onnx" else domain, name, overload


def _text(count: int) -> str:
    return str(count) if count < _COUNTLESS else f"more than {_COUNTLESS}"
