"""The verifier that runs between passes: names, order, types and roles of a graph."""

from __future__ import annotations

import os

import onnx_ir as ir

from ontrain.errors import GraphError
from ontrain.graph.infer import infer_node
from ontrain.graph.roles import Role, by_role, updates_of
from ontrain.graph.source import describe, shape_text, source_of
from ontrain.graph.subgraphs import subgraphs
from ontrain.operators import DOMAIN

__all__ = ["verify", "verify_requested"]


def verify_requested() -> bool:
    """Whether the environment asks for verification between passes (`ONTRAIN_VERIFY=1`)."""
    return os.environ.get("ONTRAIN_VERIFY", "0") not in ("", "0")


def verify(model: ir.Model, *, after: str = "") -> None:
    """Check single definition, topological order, dtypes and shapes, and that every update names a resident input.

    Raises:
        GraphError: names the node, its source line and, with `after`, the pass that broke the graph.
    """
    graph, when = model.graph, f" after {after}" if after else ""
    _check_graph(graph, set(), set(), when)
    residents = {v.name for v in by_role(graph, Role.PARAMETER, Role.BUFFER, Role.STATE)}
    for value in graph.outputs:
        target = updates_of(value)
        if target is not None and target not in residents:
            raise GraphError(f"output {value.name!r} updates {target!r}, which is no resident input{when}")


def _check_graph(graph: ir.Graph, defined: set[ir.Value], names: set[str], when: str) -> None:
    """Check definitions, order and types, given the values and names of the graphs around."""

    def define(value: ir.Value) -> None:
        if not value.name:
            raise GraphError(f"a value without a name{when}")
        if value.name in names:
            raise GraphError(f"the name {value.name!r} is defined twice{when}")
        names.add(value.name)
        defined.add(value)

    for value in (*graph.inputs, *graph.initializers.values()):
        define(value)
    for node in graph:
        for used in node.inputs:
            if used is not None and used not in defined:
                raise GraphError(
                    f"value {used.name!r} is used before it is defined{when}",
                    node=describe(node),
                    source=source_of(node),
                )
        for inner in _checked_graphs(node):
            # A composite's graph is closed: it neither sees nor shadows what is around it.
            around = (set(), set()) if node.domain else (set(defined), set(names))
            _check_graph(inner, *around, when)
        _check_types(node, when)
        for value in node.outputs:
            define(value)
    for value in graph.outputs:
        if value not in defined:
            raise GraphError(f"output {value.name!r} is made by no node{when}")


def _checked_graphs(node: ir.Node) -> list[ir.Graph]:
    """The graphs in a node, but those that only onnx reads, as FlexAttention's: a file states no types in them."""
    return subgraphs(node) if node.domain in ("", DOMAIN) else []


def _check_types(node: ir.Node, when: str) -> None:
    for value, inferred in zip(node.outputs, infer_node(node), strict=False):
        if inferred is None:
            continue
        dtype, shape = inferred
        stated = value.shape
        clash = value.dtype is not None and value.dtype != dtype
        if stated is not None and not clash:
            clash = len(stated) != len(shape) or any(
                isinstance(a, int) and isinstance(b, int) and a != b for a, b in zip(stated, shape, strict=False)
            )
        if clash:
            raise GraphError(
                f"{value.name!r} says {shape_text(value)} where its operator makes {dtype}{shape}{when}",
                node=describe(node),
                source=source_of(node),
            )
