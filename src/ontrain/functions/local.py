"""Composites as functions inside the file: a graph that other tools can open, check and run, with nothing inlined."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

import onnx_ir as ir

from ontrain.functions.registry import attributes_of, lookup
from ontrain.graph import DOMAIN, OPSET, Builder, clone_value

__all__ = ["with_local_functions"]


def with_local_functions(model: ir.Model) -> ir.Model:
    """Return a copy in which composite operators have their bodies as model-local ONNX functions.

    A body depends on shapes, attributes and absent inputs, so that each such form is an overload of its own ("", "1",
    "2", …). Bodies that use other composites call their functions. The model must have concrete shapes where a body
    asks for them; constants are shared with the original. Composites that hold graphs stay without a body.

    Source: FunctionProto and its field `overload` in the ONNX specification.
    """
    clone = model.clone()
    forms: dict[Hashable, ir.Function] = {}
    todo = list(clone.graph.all_nodes())
    while todo:
        for node in todo:
            _call(node, forms)
        todo = [node for function in _new(clone, forms) for node in function]
    for domain in {function.domain for function in clone.functions.values()}:
        clone.graph.opset_imports.setdefault(domain, 1)
    return clone


_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def _new(model: ir.Model, forms: dict[Hashable, ir.Function]) -> list[ir.Function]:
    """The functions that the model does not have yet, added to it."""
    fresh = [function for function in forms.values() if function.identifier() not in model.functions]
    for function in fresh:
        model.functions[function.identifier()] = function
    return fresh


def _call(node: ir.Node, forms: dict[Hashable, ir.Function]) -> None:
    """Let a composite node call the function of its form; other nodes are left alone."""
    if lookup(node) is None or any(attr.type in _GRAPHS for attr in node.attributes.values()):
        return  # a body that holds graphs may read values around it, which no function can
    key = (
        node.domain,
        node.op_type,
        len(node.outputs),
        tuple(None if v is None else (v.dtype, str(v.shape), _constant(v)) for v in node.inputs),
        tuple(sorted((name, str(attr.value)) for name, attr in node.attributes.items())),
    )
    if key not in forms:
        count = sum(function.domain == node.domain and function.name == node.op_type for function in forms.values())
        forms[key] = _trace(node, str(count) if count else "")
    node.overload = forms[key].overload
    for value, inside in zip(node.outputs, forms[key].outputs, strict=True):
        if inside.name == _absent(value):
            value.name = ""  # the body does not compute it in this form, and nobody reads it


def _constant(value: ir.Value) -> Hashable:
    """A body may look at a constant input: small ones are part of the form, large ones by identity."""
    if value.const_value is None:
        return None
    return value.const_value.tobytes() if value.const_value.size <= 64 else id(value.const_value)


def _absent(value: ir.Value) -> str:
    return f"absent_{value.index()}"


def _trace(node: ir.Node, overload: str) -> ir.Function:
    """Run the body of a composite node once and keep what it makes."""
    composite = lookup(node)
    assert composite is not None
    formal: list[ir.Value] = []
    for index, value in enumerate(node.inputs):
        formal_input = ir.Value() if value is None else clone_value(value)
        formal_input.name = f"x{index}"
        if value is not None and value.const_value is not None:
            formal_input.const_value = value.const_value
        formal.append(formal_input)
    graph = ir.Graph(formal, [], nodes=[], opset_imports={"": OPSET, DOMAIN: 1, node.domain: 1}, name=node.op_type)
    op = Builder(graph, fold=False)
    operands = [copy if value is not None else None for copy, value in zip(formal, node.inputs, strict=True)]
    with op.arithmetic():
        results = composite.body(op, *operands, **attributes_of(node, composite.defaults))
        outputs = list(results) if isinstance(results, tuple | list) else [results]
        for value, output in zip(node.outputs, outputs, strict=False):
            graph.outputs.append(_output(op, output, _absent(value), graph.outputs))
    _own_constants(graph)
    for formal_input in formal:
        formal_input.const_value = None
    return ir.Function(node.domain, node.op_type, overload, graph=graph, attributes=())


def _output(op: Builder, value: ir.Value | None, absent: str, taken: Sequence[ir.Value]) -> ir.Value:
    """An output of a function is the result of a node, each of another."""
    if value is None:
        empty: ir.Value = op.Constant(value=ir.tensor(0.0, dtype=ir.DataType.FLOAT))
        empty.name = absent
        return empty
    if value.producer() is None or any(value is output for output in taken):
        copy: ir.Value = op.Identity(value)
        return copy
    return value


def _own_constants(graph: ir.Graph) -> None:
    """Functions have no initializers: their constants become Constant nodes, first of all."""
    nodes = list(_constants(graph))
    if nodes:
        first = next(iter(graph), None)
        if first is None:
            graph.extend(nodes)
        else:
            graph.insert_before(first, nodes)
    graph.initializers.clear()


def _constants(graph: ir.Graph) -> Iterator[ir.Node]:
    for value in list(graph.initializers.values()):
        assert value.const_value is not None
        constant = ir.Node("", "Constant", [], [ir.AttrTensor("value", value.const_value)], num_outputs=1)
        output = constant.outputs[0]
        output.name, output.type, output.shape = value.name, value.type, value.shape
        value.replace_all_uses_with(output, replace_graph_outputs=True)
        yield constant
