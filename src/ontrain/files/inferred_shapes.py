"""onnx's own inference of shapes, in memory that does not grow with the sizes it reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache

import onnx
import onnx.shape_inference

from ontrain.files.inner_graphs import subgraphs
from ontrain.files.schemas import STANDARD, schema_of

__all__ = ["inferred_graph", "with_shapes"]

_FEW = 1024
"""Bytes of a stored tensor whose values shapes may depend on."""
_LONGEST = 1 << 16
"""Elements of a vector that may be followed as if it were a shape; onnx takes some 140 bytes for each."""
_HIDDEN = "ontrain.hidden"
"""A domain of which onnx knows no operator, so that it infers nothing."""
_ROUNDS = 8


def with_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of a model with the shapes that onnx infers, see `inferred_graph`.

    Args:
        model: left untouched.

    Raises:
        onnx.shape_inference.InferenceError: the model is damaged.
        ValueError, RuntimeError: it is no model.
    """
    shaped, graph = onnx.ModelProto(), inferred_graph(model)
    shaped.CopyFrom(model)
    for field in ("node", "output", "value_info"):
        shaped.graph.ClearField(field)
        getattr(shaped.graph, field).extend(getattr(graph, field))
    return shaped


def inferred_graph(
    model: onnx.ModelProto, outputs: Iterable[onnx.ValueInfoProto] | None = None, *, strict: bool = False
) -> onnx.GraphProto:
    """Return a model's graph with the shapes that onnx infers, those that depend on the values of others, too.

    It has no values of weights that are too large for shapes: such a weight is an input.

    To follow values, onnx notes each element of a vector that could be a shape, whatever its dtype. A file that states
    or computes a length of 2^32 would take all memory. So values are followed in rounds, each through those nodes only
    whose vectors are known to be short.

    Args:
        model: left untouched.
        outputs: what is asked for in the place of the graph's outputs.
        strict: refuse types and shapes that contradict the operators.

    Raises:
        onnx.shape_inference.InferenceError: the model is damaged, or contradicts itself.
        ValueError, RuntimeError: it is no model.
    """
    shaped = _inferred(_light(model, model.graph.output if outputs is None else outputs), strict, follow=False)
    if shaped.functions:  # onnx follows values into them where nobody sees their lengths
        return shaped.graph
    shaped.opset_import.add(domain=_HIDDEN, version=1)
    hidden = None
    for _ in range(_ROUNDS):
        unsafe = list(_unsafe(shaped.graph, {}))
        if len(unsafe) == hidden:
            break
        hidden = len(unsafe)
        shaped = _followed(shaped, unsafe, strict)
        if not unsafe:
            break
    return shaped.graph


def _light(model: onnx.ModelProto, outputs: Iterable[onnx.ValueInfoProto]) -> onnx.ModelProto:
    """The model with large weights as inputs, without their values."""
    light = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions)
    graph, inputs = light.graph, {value.name for value in model.graph.input}
    graph.name = model.graph.name
    for field in ("node", "input", "value_info", "sparse_initializer"):
        getattr(graph, field).extend(getattr(model.graph, field))
    graph.output.extend(outputs)
    for tensor in model.graph.initializer:
        if tensor.data_location != onnx.TensorProto.EXTERNAL and tensor.ByteSize() <= _FEW:
            graph.initializer.append(tensor)
        elif tensor.name not in inputs:
            kind = graph.input.add(name=tensor.name).type.tensor_type
            kind.elem_type = tensor.data_type
            kind.shape.SetInParent()
            for size in tensor.dims:
                kind.shape.dim.add(dim_value=size)
    return light


def _inferred(model: onnx.ModelProto, strict: bool, *, follow: bool) -> onnx.ModelProto:
    return onnx.shape_inference.infer_shapes(model, check_type=strict, strict_mode=strict, data_prop=follow)


def _followed(model: onnx.ModelProto, unsafe: list[onnx.NodeProto], strict: bool) -> onnx.ModelProto:
    """The model with values followed through all but these nodes, whose results get the shapes that follow without."""
    domains = [node.domain for node in unsafe]
    for node in unsafe:
        node.domain = _HIDDEN
    followed = _inferred(model, strict, follow=True)
    if not unsafe:
        return followed
    for node, domain in zip(_nodes(followed.graph, _HIDDEN), domains, strict=True):
        node.domain = domain
    return _inferred(followed, strict, follow=False)


def _nodes(graph: onnx.GraphProto, domain: str) -> Iterator[onnx.NodeProto]:
    """The nodes of a domain in a graph and in the bodies of its nodes, in a fixed order."""
    for node in graph.node:
        if node.domain == domain:
            yield node
        for body in subgraphs(node):
            yield from _nodes(body, domain)


def _unsafe(graph: onnx.GraphProto, outer: dict[str, bool]) -> Iterator[onnx.NodeProto]:
    """The nodes, in the order of `_nodes`, that onnx would follow and of which an operand may be a long vector."""
    short = outer | _short(graph)
    for node in graph.node:
        names = (*node.input, *node.output)
        if _follows(node) and not all(short.get(name) for name in names if name):
            yield node
        for body in subgraphs(node):
            yield from _unsafe(body, short)


def _follows(node: onnx.NodeProto) -> bool:
    """Whether onnx reads the elements of a node's operands; Shape and Size begin with a shape."""
    standard = node.domain in ("", STANDARD) and node.op_type not in ("Shape", "Size")
    return standard and _has_data_propagation(node.op_type)


@cache
def _has_data_propagation(op_type: str) -> bool:
    schema = schema_of(op_type, version=onnx.defs.onnx_opset_version())
    return schema is not None and bool(schema.has_data_propagation_function)


def _short(graph: onnx.GraphProto) -> dict[str, bool]:
    """Whether a value is known to be no long vector, for those of which the graph tells anything."""
    stated = {
        value.name: _is_short([dim.dim_value or None for dim in value.type.tensor_type.shape.dim])
        for value in (*graph.input, *graph.output, *graph.value_info)
        if value.type.tensor_type.HasField("shape")
    }
    return stated | {tensor.name: _is_short(list(tensor.dims)) for tensor in graph.initializer}


def _is_short(dims: list[int | None]) -> bool:
    return len(dims) != 1 or (dims[0] is not None and dims[0] <= _LONGEST)
