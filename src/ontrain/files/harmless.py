"""Whether a model needs no guard: told from those of its nodes that may need one.

Most files name such operators and need nothing, as their divisions are of floating-point numbers. To find the types of
all their values, as `ontrain.files.traps` does, takes about as long as onnxruntime takes to load them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx

from ontrain.files.demands import DEMANDING, OPTIONAL_OPERANDS, Demand, demands_of
from ontrain.files.division_guards import INTEGERS, divides_all
from ontrain.files.element_types import kind_or_twin
from ontrain.files.inner_graphs import allowed_subgraphs
from ontrain.files.schemas import STANDARD
from ontrain.files.suspicion import TRAPS, TREES

__all__ = ["is_harmless"]

_LOOKED_AT = {name.decode() for name in (*TRAPS, TREES)}
_DIVISIONS = ("Div", "Mod")


def is_harmless(graph: onnx.GraphProto, shapes: Mapping[str, Sequence[int]], opset: int) -> bool:
    """Return whether a model's graph is sure to need no guard, and to be refused for nothing by who puts guards in.

    Args:
        graph: with functions inlined.
        shapes: those that are certain, by the names of values.
        opset: the version of the standard.
    """
    ranks = {name: len(shape) for name, shape in shapes.items()}
    divisors = []
    for node in graph.node:
        op_type, domain = node.op_type, node.domain
        if not isinstance(op_type, str) or allowed_subgraphs(node):
            return False
        if op_type not in _LOOKED_AT:
            continue
        if not node.output or "" in node.input:
            return False
        if op_type in _DIVISIONS and len(node.input) > 1 and domain in ("", STANDARD):
            divisors.append(node.input[1])
        elif op_type.encode() in DEMANDING:
            if not all(_is_met(demand, shapes.get(node.input[demand.operand])) for demand in demands_of(node, ranks)):
                return False
        elif op_type not in OPTIONAL_OPERANDS or not node.input:
            return False
    return not divisors or _are_divisors(divisors, graph, opset)


def _is_met(demand: Demand, shape: Sequence[int] | None) -> bool:
    return shape is not None and demand.holds(shape)


def _are_divisors(names: list[str], graph: onnx.GraphProto, opset: int) -> bool:
    """Whether values are known to be no integers, or constants that every number is divided by.

    A type is looked for on the way back to where one is known.
    """
    inputs = {value.name for value in graph.input}
    constants = {tensor.name: tensor for tensor in graph.initializer if tensor.name not in inputs}
    types = {
        value.name: value.type.tensor_type.elem_type
        for value in (*graph.value_info, *graph.output, *graph.input)
        if value.type.tensor_type.elem_type
    }
    types.update((tensor.name, tensor.data_type) for tensor in graph.initializer)
    makers = {name: node for node in graph.node for name in node.output}
    for name in names:
        way = [name]
        while way[-1] not in types:
            node = makers.get(way[-1])
            before = None if node is None else kind_or_twin(node, way[-1], types, opset)
            if before is None or len(way) > len(makers):
                return False
            if isinstance(before, str):
                way.append(before)
            else:
                types[way[-1]] = before
        kind = types[way[-1]]
        if kind in INTEGERS and not divides_all(constants.get(name) or _constant(makers.get(name))):
            return False
        types.update(dict.fromkeys(way, kind))
    return True


def _constant(node: onnx.NodeProto | None) -> onnx.TensorProto | None:
    """What a node holds that is a Constant."""
    if node is None or node.op_type != "Constant" or node.domain:
        return None
    return next((attribute.t for attribute in node.attribute if attribute.name == "value"), None)
