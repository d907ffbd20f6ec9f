"""Inputs that say how operators work: sizes, axes and the like, which a plan has as numbers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.graph.halves import reads
from ontrain.graph.rebuild import rebuild
from ontrain.graph.subgraphs import all_nodes
from ontrain.operators import record_of

__all__ = ["data_constants", "fed_settings", "fed_switches", "with_values"]


def fed_settings(graph: ir.Graph, inputs: Collection[str]) -> list[str]:
    """Return which of these graph inputs the sizes, axes and modes of operators are computed from, by name."""
    wanted: set[ir.Value] = set()
    for node in reversed(list(all_nodes(graph))):
        record = record_of(node)
        if record.reads_shape:
            continue  # of what it reads only the shape matters, which a plan has anyway
        if not wanted.isdisjoint(node.outputs):
            wanted.update(reads(node))
        else:
            wanted.update(v for i in record.settings for v in node.inputs[i : i + 1] if v is not None)
    return [v.name for v in graph.inputs if v.name and v.name in inputs and v in wanted]


def fed_switches(graph: ir.Graph, inputs: Collection[str]) -> list[str]:
    """Return which of these graph inputs, a whole number or truth value each, decide what an If does, by name."""
    wanted: set[ir.Value] = set()
    for node in reversed(list(all_nodes(graph))):
        if not wanted.isdisjoint(node.outputs) and not record_of(node).reads_shape:
            wanted.update(reads(node))
        if not node.domain and node.op_type == "If" and node.inputs[0] is not None:
            wanted.add(node.inputs[0])
    return [v.name for v in graph.inputs if v.name and v.name in inputs and v in wanted and _is_switch(v)]


def _is_switch(value: ir.Value) -> bool:
    """Whether a value is one whole number or truth value."""
    whole = value.dtype is not None and (value.dtype.is_integer() or value.dtype == ir.DataType.BOOL)
    return whole and value.shape is not None and all(size == 1 for size in value.shape)


def data_constants(graph: ir.Graph) -> list[ir.Value]:
    """Return the constants that results are computed from, without those that say sizes, axes and modes only."""
    data = set(graph.outputs)
    for node in reversed(list(graph)):
        if any(isinstance(a, ir.Attr) and a.type == ir.AttributeType.GRAPH for a in node.attributes.values()):
            data.update(reads(node))
            continue
        record = record_of(node)
        if record.reads_shape or data.isdisjoint(node.outputs):
            continue
        data.update(v for i, v in enumerate(node.inputs) if v is not None and i not in record.settings)
    return [value for value in graph.initializers.values() if value in data]


def with_values(model: ir.Model, values: Mapping[str, np.ndarray[Any, Any]]) -> ir.Model:
    """Return the model with constants in the place of these inputs.

    Args:
        model: left untouched.
        values: of inputs by name, in their dtype.
    """
    rebuilt = rebuild(model)
    for value in list(rebuilt.graph.inputs):
        array = values.get(value.name or "")
        if array is not None:
            rebuilt.graph.inputs.remove(value)
            value.const_value = ir.tensor(array, name=value.name)
            value.shape = ir.Shape(array.shape)
            rebuilt.graph.register_initializer(value)
    return rebuilt
