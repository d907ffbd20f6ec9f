"""Graphs inside the nodes of a file."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

__all__ = ["subgraphs"]


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs among a node's attributes."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs
