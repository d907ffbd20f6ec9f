"""Outputs of a graph that was made of another: they stand under the names that they had, each as a value of its own."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

import onnx_ir as ir

from ontrain.graph.builder import Builder
from ontrain.graph.subgraphs import all_nodes, subgraphs

__all__ = ["as_output", "name_outputs"]


def as_output(op: Builder, value: ir.Value, old: ir.Value, done: Iterable[ir.Value]) -> ir.Value:
    """Give an output its old metadata; an input, a constant or one of the outputs done goes through an Identity."""
    if value.producer() is None or any(value is other for other in done):
        node = ir.Node("", "Identity", [value], num_outputs=1)
        node.outputs[0].type, node.outputs[0].shape = value.type, value.shape
        node.outputs[0].name = op.fresh(f"{old.name}_copy")
        op.graph.append(node)
        value = node.outputs[0]
    value.metadata_props.update(old.metadata_props)
    return value


def name_outputs(op: Builder, outputs: Sequence[ir.Value], names: Sequence[str | None]) -> None:
    """Give outputs these names, all at once: a value may hold the name that belongs to another.

    Where there is none, the output is a copy of an input and keeps its own name; so does one whose name stood before.
    """
    left = set(names) - {None}
    for node in all_nodes(op.graph):
        _rename(op, node.outputs, left)
        for graph in subgraphs(node):
            _rename(op, graph.inputs, left)
    for value, name in zip(outputs, names, strict=True):
        if name in left:
            left.discard(name)
            value.name = name


def _rename(op: Builder, values: Iterable[ir.Value], names: Container[str | None]) -> None:
    """Give values other names in place of these."""
    for value in values:
        if value.name in names and value.name is not None:
            value.name = op.fresh(value.name)
