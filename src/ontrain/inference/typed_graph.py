"""Whether the types of a file's graph follow from the file alone, so that plans of the whole graph can hold it."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from ontrain.capture import FiledModel
from ontrain.errors import GraphError
from ontrain.graph import UntypedError
from ontrain.inference.stepwise import is_numeric, may_need_steps

__all__ = ["states_numbers", "takes_numbers", "typed_graph"]


def states_numbers(proto: onnx.ModelProto) -> bool:
    """Return whether each output is stated to be a tensor of numbers, or to be nothing, so that it is inferred."""
    return all(map(_is_of_numbers, proto.graph.output))


def takes_numbers(graph: ir.Graph) -> bool:
    """Return whether all inputs are tensors of numbers."""
    return all(isinstance(v.type, ir.TensorType) and is_numeric(v) for v in graph.inputs)


def typed_graph(filed: FiledModel, proto: onnx.ModelProto) -> ir.Model | None:
    """Return the graph with all types, None where these depend on what is fed or an output is no tensor of numbers."""
    graph = filed.raw.graph
    if not takes_numbers(graph) or any(value.shape is None for value in graph.inputs):
        return None
    try:
        model = filed.typed()
    except GraphError as error:
        if isinstance(error, UntypedError) or may_need_steps(graph):
            return None
        raise
    return model if _infers_numbers(model.graph, proto.graph) else None


def _is_of_numbers(value: onnx.ValueInfoProto) -> bool:
    """Whether an output is stated to be a tensor of numbers, or to be nothing, so that its type is inferred."""
    if value.type.WhichOneof("value") is None:
        return True
    return value.type.HasField("tensor_type") and value.type.tensor_type.elem_type != onnx.TensorProto.STRING


def _infers_numbers(graph: ir.Graph, stated: onnx.GraphProto) -> bool:
    """Whether outputs to which the file gives no type are tensors of numbers."""
    untyped = {output.name for output in stated.output if output.type.WhichOneof("value") is None}
    return all(isinstance(v.type, ir.TensorType) and is_numeric(v) for v in graph.outputs if v.name in untyped)
