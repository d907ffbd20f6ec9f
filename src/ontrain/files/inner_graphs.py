"""Graphs inside the nodes of a file."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import onnx

from ontrain.files.schemas import STANDARD

__all__ = ["allowed_subgraphs", "subgraphs"]

_KINDS = (onnx.defs.OpSchema.AttrType.GRAPH, onnx.defs.OpSchema.AttrType.GRAPHS)


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs among a node's attributes."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def allowed_subgraphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """Return the graphs in a node whose operator may hold any; who runs the file refuses those of other nodes.

    To ask an operator is quicker than to look at the attributes of each node.
    """
    return list(subgraphs(node)) if _may_hold_any(node.domain, node.op_type) else []


@cache
def _may_hold_any(domain: str, op_type: str) -> bool:
    # A name that is no text comes as bytes.
    if domain not in ("", STANDARD) or not isinstance(op_type, str) or not onnx.defs.has(op_type):
        return True
    return any(attribute.type in _KINDS for attribute in onnx.defs.get_schema(op_type).attributes.values())
