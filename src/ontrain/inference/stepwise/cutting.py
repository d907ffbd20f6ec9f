"""Parts of a graph as models of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir

from ontrain.graph import Role, new_model, reads, set_role
from ontrain.inference.stepwise.values import Array

__all__ = ["Kind", "cut_out", "read_outside"]

Kind = tuple[ir.DataType, int]
"""Element type and number of dimensions of a tensor."""


def read_outside(nodes: Iterable[ir.Node]) -> list[ir.Value]:
    """Return the values that nodes read and do not make, constants left out, in order of first use."""
    produced: set[ir.Value] = set()
    outside: dict[ir.Value, None] = {}
    for node in nodes:
        for value in reads(node):
            if value not in produced and value.const_value is None:
                outside[value] = None
        produced.update(node.outputs)
    return list(outside)


def cut_out(
    nodes: Sequence[ir.Node], inputs: Sequence[ir.Value], kinds: Sequence[Kind], weights: Mapping[ir.Value, str],
    outputs: Sequence[ir.Value], values: Mapping[str, Array] | None = None,
) -> ir.Model:  # fmt: skip
    """Return some nodes as a model whose values have no types yet, but for its inputs.

    Args:
        nodes: in order; left untouched.
        inputs: what they read that varies.
        kinds: of these inputs.
        weights: what may be among the rest that they read, and the names of these inputs of role PARAMETER.
        outputs: what the model gives.
        values: of inputs that are constants of the model, by name.
    """
    mapped: dict[ir.Value, ir.Value] = {}
    constants: dict[ir.Value, ir.Value] = {}
    for value, (dtype, rank) in zip(inputs, kinds, strict=True):
        number = None if values is None else values.get(value.name or "")
        if number is not None:
            constants[value] = _constant(value.name, ir.tensor(number))
            continue
        dims = [f"{value.name}_{i}" for i in range(rank)]
        copy = ir.Value(name=value.name, type=ir.TensorType(dtype), shape=ir.Shape(dims))
        mapped[value] = set_role(copy, Role.INPUT)
    for value in read_outside(nodes):
        if value in weights and value not in mapped:
            copy = ir.Value(name=weights[value], type=value.type, shape=value.shape)
            mapped[value] = set_role(copy, Role.PARAMETER)
    model = new_model(list(mapped.values()), "region")
    mapped.update(constants)
    for node in nodes:
        model.graph.append(_copy(node, mapped))
    for value in mapped.values():
        if value.const_value is not None:
            model.graph.register_initializer(value)
    model.graph.outputs.extend(mapped[value] for value in outputs)
    return model


def _copy(node: ir.Node, mapped: dict[ir.Value, ir.Value]) -> ir.Node:
    attributes = [
        ir.AttrGraph(attr.name, _copy_graph(attr.as_graph(), mapped)) if attr.type == ir.AttributeType.GRAPH else attr
        for attr in node.attributes.values()
    ]
    copy = ir.Node(
        node.domain, node.op_type, [None if v is None else _looked_up(v, mapped) for v in node.inputs], attributes,
        overload=node.overload, num_outputs=len(node.outputs), version=node.version, name=node.name,
        metadata_props=dict(node.metadata_props),
    )  # fmt: skip
    for old, new in zip(node.outputs, copy.outputs, strict=True):
        new.name = old.name
        mapped[old] = new
    return copy


def _looked_up(value: ir.Value, mapped: dict[ir.Value, ir.Value]) -> ir.Value:
    if value not in mapped:
        assert value.const_value is not None, f"{value.name} is made outside of the part"
        mapped[value] = _constant(value.name, value.const_value)
    return mapped[value]


def _constant(name: str | None, tensor: ir.TensorProtocol) -> ir.Value:
    return ir.Value(
        name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()), const_value=tensor
    )


def _copy_graph(graph: ir.Graph, mapped: dict[ir.Value, ir.Value]) -> ir.Graph:
    inner = dict(mapped)
    for value in graph.inputs:
        inner[value] = ir.Value(name=value.name, type=value.type, shape=value.shape)
    nodes = [_copy(node, inner) for node in graph]
    outputs = [_looked_up(value, inner) for value in graph.outputs]
    constants = [copy for value, copy in inner.items() if copy.const_value is not None and value not in mapped]
    return ir.Graph(
        [inner[value] for value in graph.inputs], outputs, nodes=nodes, initializers=constants,
        opset_imports=graph.opset_imports.copy(), name=graph.name,
    )  # fmt: skip
