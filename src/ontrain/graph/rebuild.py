"""Replay of a graph through a `Builder`: the mechanism behind specialisation, inlining and rewriting passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from ontrain.errors import GraphError, InputError
from ontrain.graph.builder import Builder
from ontrain.graph.infer import DOMAIN, OPSET
from ontrain.graph.source import inherit_source

__all__ = ["Rewrite", "clone_value", "live_nodes", "new_model", "rebuild", "specialise"]

Rewrite = Callable[[Builder, ir.Node, list[ir.Value | None]], Sequence[ir.Value | None] | None]
"""Given the builder, a node of the old graph and its inputs in the new one: new outputs, or None to copy the node."""


def new_model(inputs: Sequence[ir.Value], name: str) -> ir.Model:
    """Return an empty model at ontrain's opset with these graph inputs."""
    graph = ir.Graph(inputs, [], nodes=[], opset_imports={"": OPSET, DOMAIN: 1}, name=name)
    return ir.Model(graph, ir_version=10, producer_name="ontrain")


def clone_value(value: ir.Value, shape: Sequence[int] | None = None) -> ir.Value:
    """Return a free copy of a graph input, optionally with another shape, with its role kept."""
    new = ir.Value(name=value.name, shape=ir.Shape(shape) if shape is not None else value.shape, type=value.type)
    new.metadata_props.update(value.metadata_props)
    return new


def rebuild(
    model: ir.Model,
    rewrite: Rewrite | None = None,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> ir.Model:
    """Return a new model with every node that an output needs replayed in order.

    Args:
        model: left untouched.
        rewrite: asked for each node; may emit other nodes in its place.
        shapes: new shapes of graph inputs by name; everything downstream is inferred anew.
    """
    old = model.graph
    shapes = shapes or {}
    inputs = [clone_value(v, shapes.get(v.name or "")) for v in old.inputs]
    new = new_model(inputs, old.name or "graph")
    op = Builder(new.graph)
    mapped: dict[ir.Value, ir.Value] = dict(zip(old.inputs, inputs, strict=True))

    def lookup(value: ir.Value | None) -> ir.Value | None:
        if value is None:
            return None
        if value not in mapped:
            if value.const_value is None:
                raise GraphError(f"value {value.name!r} is used before it is made")
            mapped[value] = op.const(value.const_value.numpy())
        return mapped[value]

    for node in live_nodes(old):
        ins = [lookup(v) for v in node.inputs]
        with inherit_source(node, op.nodes):
            outs = rewrite(op, node, ins) if rewrite is not None else None
            if outs is None:
                copy = ir.Node(node.domain, node.op_type, ins, node.attributes.values(), num_outputs=len(node.outputs))
                copy.metadata_props.update(node.metadata_props)
                made = op.add(copy, [v.name for v in node.outputs])
                outs = made if isinstance(made, tuple) else (made,)
        for before, after in zip(node.outputs, outs, strict=False):
            if after is not None:
                mapped[before] = after
    for value in old.outputs:
        new.graph.outputs.append(_as_output(op, new.graph, lookup(value), value))
    return new


def _as_output(op: Builder, graph: ir.Graph, value: ir.Value | None, old: ir.Value) -> ir.Value:
    """Give an output its old name and metadata; an input, a constant or a second use goes through an Identity."""
    assert value is not None
    if value.producer() is None or any(value is done for done in graph.outputs):
        node = ir.Node("", "Identity", [value], num_outputs=1)
        node.outputs[0].type, node.outputs[0].shape = value.type, value.shape
        node.outputs[0].name = op.fresh(f"{old.name}_copy" if value.name == old.name else old.name or "output")
        graph.append(node)
        value = node.outputs[0]
    if value.name != old.name and old.name and op.fresh(old.name) == old.name:
        value.name = old.name
    value.metadata_props.update(old.metadata_props)
    return value


def live_nodes(graph: ir.Graph) -> list[ir.Node]:
    """Return the nodes that some output depends on, in graph order."""
    needed: set[ir.Value] = set(graph.outputs)
    kept: list[ir.Node] = []
    for node in reversed(graph):
        if any(v in needed for v in node.outputs):
            kept.append(node)
            needed.update(v for v in node.inputs if v is not None)
    return kept[::-1]


def specialise(model: ir.Model, shapes: Mapping[str, Sequence[int]]) -> ir.Model:
    """Return the model with concrete input shapes: all shape arithmetic folded, every value's shape exact.

    Args:
        shapes: for each graph input with a symbolic dimension, its shape.

    Raises:
        InputError: a shape contradicts a fixed dimension of the graph.
    """
    for value in model.graph.inputs:
        given = shapes.get(value.name or "")
        if given is None or value.shape is None:
            continue
        fixed: list[Any] = [d if isinstance(d, int) else None for d in value.shape]
        if len(fixed) != len(given) or any(f is not None and f != g for f, g in zip(fixed, given, strict=True)):
            wanted = [d if isinstance(d, int) else d.value for d in value.shape]
            raise InputError(
                f"input {value.name!r} has shape {list(given)}, the graph expects {wanted}",
                way_out="name the dimension with a string in model_desc to let it vary, or feed the shape expected",
            )
    return rebuild(model, shapes=shapes)
