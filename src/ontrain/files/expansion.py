"""How large a model becomes when its functions are inlined, counted without inlining."""

from __future__ import annotations

import graphlib
from collections import Counter
from collections.abc import Iterable, Iterator

import onnx

from ontrain.errors import GraphError

__all__ = ["call_depth", "check_expansion"]

_Key = tuple[str, str, str]
_RATIO, _FEW, _MOST = 100, 10_000, 1_000_000
"""Layers written once and called a hundred times are a model; forty functions that double are an attack."""


def check_expansion(proto: onnx.ModelProto, name: str) -> None:
    """Check that inlining takes time and memory in proportion to the file.

    Functions that call each other twice a level double with each level: a file of a few bytes holds 2^40 nodes.

    Raises:
        GraphError: a function calls itself, or the nodes become too many.
    """
    if not proto.functions:
        return
    calls = _calls(proto)
    sizes: dict[_Key, int] = {}
    for key in _order(calls):
        sizes[key] = sum(count * sizes.get(called, 1) for called, count in calls[key].items())
    top = Counter(_keys(proto.graph.node))
    total = sum(count * sizes.get(called, 1) for called, count in top.items())
    written = sum(top.values()) + sum(sum(counts.values()) for counts in calls.values())
    limit = min(_MOST, max(_FEW, _RATIO * written))
    if total > limit:
        raise GraphError(
            f"the functions of {name} expand to {total} nodes",
            reason=f"the file states {written}; more than {limit} are taken for an attack",
            way_out="inline them with onnx.inliner before loading if the model is meant so",
        )


def call_depth(proto: onnx.ModelProto) -> int:
    """Return how many functions call one another in a row at most.

    Raises:
        GraphError: a function calls itself.
    """
    calls, depths = _calls(proto), dict[_Key, int]()
    for key in _order(calls):
        depths[key] = 1 + max((depths[called] for called in calls[key] if called in depths), default=0)
    return max((depths.get(key, 0) for key in _keys(proto.graph.node)), default=0)


def _calls(proto: onnx.ModelProto) -> dict[_Key, Counter[_Key]]:
    """How often each function's body names each operator."""
    return {(f.domain, f.name, f.overload): Counter(_keys(f.node)) for f in proto.functions}


def _order(calls: dict[_Key, Counter[_Key]]) -> list[_Key]:
    """The functions, each after those that it calls."""
    sorter = graphlib.TopologicalSorter(
        {key: [callee for callee in callees if callee in calls] for key, callees in calls.items()}
    )
    try:
        return list(sorter.static_order())
    except graphlib.CycleError as error:
        circle = " → ".join(f"{domain}.{name}" for domain, name, _ in error.args[1])
        raise GraphError("a function calls itself", reason=circle) from error


def _keys(nodes: Iterable[onnx.NodeProto]) -> Iterator[_Key]:
    # A message nests a hundred deep at most, so that recursion ends.
    for node in nodes:
        yield node.domain, node.op_type, node.overload
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs) if attribute.HasField("g") else attribute.graphs:
                yield from _keys(inner.node)
