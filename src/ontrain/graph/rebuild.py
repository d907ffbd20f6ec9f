"""Replay of a graph through a `Builder`: the mechanism behind specialisation, inlining and rewriting passes."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.errors import InputError
from ontrain.graph.builder import Builder
from ontrain.graph.closed_control import closed
from ontrain.graph.halves import reads
from ontrain.graph.plain_control import copy_control
from ontrain.graph.replay import Control, Replay, Rewrite
from ontrain.graph.subgraphs import all_nodes, live_nodes, subgraphs
from ontrain.operators import DOMAIN, OPSET

__all__ = ["Rewrite", "clone_value", "extract", "live_nodes", "model_of", "new_model", "rebuild", "specialise"]


Array = np.ndarray[Any, Any]


def new_model(inputs: Sequence[ir.Value], name: str) -> ir.Model:
    """Return an empty model at ontrain's opset with these graph inputs."""
    graph = ir.Graph(inputs, [], nodes=[], opset_imports={"": OPSET, DOMAIN: 1}, name=name)
    return ir.Model(graph, ir_version=10, producer_name="ontrain")


def clone_value(value: ir.Value, shape: Sequence[int | str | None] | None = None) -> ir.Value:
    """Return a free copy of a graph input, optionally with another shape, with its role kept."""
    new = ir.Value(name=value.name, shape=ir.Shape(shape) if shape is not None else value.shape, type=value.type)
    new.metadata_props.update(value.metadata_props)
    return new


def rebuild(
    model: ir.Model,
    rewrite: Rewrite | None = None,
    *,
    shapes: Mapping[str, Sequence[int | str | None]] | None = None,
    values: Mapping[str, Array] | None = None,
    control: Control = copy_control,
    typed: bool = False,
) -> ir.Model:
    """Return a new model with every node that an output needs replayed in order.

    Args:
        model: left untouched.
        rewrite: asked for each node, those in the graphs of the standard's If, Loop and Scan too; may emit other nodes
            in its place.
        shapes: new shapes of graph inputs by name; everything downstream is inferred anew.
        values: arrays that take the places of graph inputs, by name.
        control: what becomes of the standard's If, Loop and Scan; by default a copy.
        typed: whether a builder typed all values of `model`, and a file stated none: a node whose inputs keep their
            types is not inferred again.
    """
    old = model.graph
    shapes, values = shapes or {}, values or {}
    fed = [v for v in old.inputs if v.name not in values]
    inputs = [clone_value(v, shapes.get(v.name or "")) for v in fed]
    new = new_model(inputs, old.name or "graph")
    new.graph.meta.update(old.meta)
    op = Builder(new.graph)
    mapped: dict[ir.Value, ir.Value] = {v: op.const(values[v.name or ""]) for v in old.inputs if v.name in values}
    mapped.update(zip(fed, inputs, strict=True))
    replay = Replay(op, mapped, rewrite=rewrite, control=control, typed=typed)
    replay.run(live_nodes(old))
    for value in old.outputs:
        new.graph.outputs.append(_as_output(op, new.graph, replay.find(value), value))
    _name_outputs(op, new.graph.outputs, old.outputs)
    return new


def extract(model: ir.Model, inputs: Sequence[ir.Value], outputs: Sequence[ir.Value]) -> ir.Model:
    """Return the part of a model that lies between some of its values, as a model of its own.

    Args:
        model: left untouched.
        inputs: values that the part is given, graph inputs or others; they keep name, type and role.
        outputs: values that it gives, in this order; they depend on `inputs` and constants only.
    """
    starts, needed = set(inputs), set(outputs)
    nodes = []
    for node in reversed(model.graph):
        if any(v in needed and v not in starts for v in node.outputs):
            nodes.append(node)
            needed.update(reads(node))
    return model_of(nodes[::-1], inputs, outputs, model.graph.name or "graph")


def model_of(
    nodes: Sequence[ir.Node], inputs: Sequence[ir.Value], outputs: Sequence[ir.Value], name: str, *,
    rewrite: Rewrite | None = None, values: Mapping[ir.Value, Array] | None = None, typed: bool = False,
) -> ir.Model:  # fmt: skip
    """Return nodes of a graph, which are left untouched, as a model of their own.

    Args:
        nodes: in order.
        inputs: values that they are given, graph inputs or others; they keep name, type and role.
        outputs: values that they give, in this order; they depend on `inputs`, `values` and constants only.
        name: of the model's graph.
        rewrite: as in `rebuild`.
        values: further values that they are given, as constants.
        typed: as in `rebuild`.
    """
    clones = [clone_value(v) for v in inputs]
    new = new_model(clones, name)
    op = Builder(new.graph)
    mapped: dict[ir.Value, ir.Value] = dict(zip(inputs, clones, strict=True))
    mapped.update((value, op.const(array)) for value, array in (values or {}).items())
    replay = Replay(op, mapped, rewrite=rewrite, control=copy_control, typed=typed)
    replay.run(nodes)
    for value in outputs:
        new.graph.outputs.append(_as_output(op, new.graph, replay.find(value), value))
    return new


def _as_output(op: Builder, graph: ir.Graph, value: ir.Value, old: ir.Value) -> ir.Value:
    """Give an output its old metadata; an input, a constant or a second use goes through an Identity."""
    if value.producer() is None or any(value is done for done in graph.outputs):
        node = ir.Node("", "Identity", [value], num_outputs=1)
        node.outputs[0].type, node.outputs[0].shape = value.type, value.shape
        node.outputs[0].name = op.fresh(f"{old.name}_copy")
        graph.append(node)
        value = node.outputs[0]
    value.metadata_props.update(old.metadata_props)
    return value


def _rename(op: Builder, values: Iterable[ir.Value], names: Container[str | None]) -> None:
    """Give values other names in place of these."""
    for value in values:
        if value.name in names and value.name is not None:
            value.name = op.fresh(value.name)


def _name_outputs(op: Builder, outputs: Sequence[ir.Value], old: Sequence[ir.Value]) -> None:
    """Give the outputs their old names, all at once: a value may hold the name that belongs to another."""
    names = {value.name for value in old if not value.is_graph_input()}
    for node in all_nodes(op.graph):
        _rename(op, node.outputs, names)
        for graph in subgraphs(node):
            _rename(op, graph.inputs, names)
    for value, before in zip(outputs, old, strict=True):
        # A copy, of an input or of an output that stands twice, has a name of its own.
        if not before.is_graph_input() and before.name in names:
            names.discard(before.name)
            value.name = before.name


def specialise(
    model: ir.Model, shapes: Mapping[str, Sequence[int]], values: Mapping[str, Array] | None = None
) -> ir.Model:
    """Return the model with concrete input shapes: all shape arithmetic folded, every value's shape exact.

    Branches on constants are taken, short loops of known length unrolled; other If, Loop and Scan become the
    composites of `ontrain.graph.control`.

    Args:
        shapes: for each graph input with a symbolic dimension, its shape.
        values: arrays that take the places of graph inputs, by name, in their dtype.

    Raises:
        InputError: a shape contradicts a fixed dimension of the graph.
        GraphError: the shape of a value depends on the data, through a branch or the length of a loop.
    """
    for value in model.graph.inputs:
        shape = shapes.get(value.name or "")
        if shape is None or value.shape is None:
            continue
        fixed: list[Any] = [d if isinstance(d, int) else None for d in value.shape]
        if len(fixed) != len(shape) or any(f is not None and f != g for f, g in zip(fixed, shape, strict=True)):
            wanted = [d if isinstance(d, int) else d.value for d in value.shape]
            raise InputError(
                f"input {value.name!r} has shape {list(shape)}, the graph expects {wanted}",
                way_out="name the dimension with a string in model_desc to let it vary, or feed the shape expected",
            )
    return rebuild(model, shapes=shapes, values=values, control=closed)
