"""Whether the rank of an output follows from the graph by onnx's own inference, as onnxruntime asks it."""

from __future__ import annotations

import onnx
import onnx.shape_inference

__all__ = ["infers_rank"]

_FEW = 1024
"""Bytes of a stored tensor whose values shapes may depend on."""


def infers_rank(proto: onnx.ModelProto, name: str) -> bool:
    """Return whether onnx infers how many sizes an output has, whatever the file says of it.

    Args:
        proto: the model, left untouched.
        name: of the output.
    """
    model = onnx.ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import, functions=proto.functions)
    graph = model.graph
    graph.name = "ranks"
    graph.node.extend(proto.graph.node)
    inputs = {value.name for value in proto.graph.input}
    graph.input.extend(proto.graph.input)
    for tensor in proto.graph.initializer:
        if tensor.data_location != onnx.TensorProto.EXTERNAL and tensor.ByteSize() <= _FEW:
            graph.initializer.append(tensor)
        elif tensor.name not in inputs:
            kind = graph.input.add(name=tensor.name).type.tensor_type
            kind.elem_type = tensor.data_type
            kind.shape.SetInParent()
            for size in tensor.dims:
                kind.shape.dim.add(dim_value=size)
    stated = next(value for value in proto.graph.output if value.name == name)
    graph.output.add(name=name).type.tensor_type.elem_type = stated.type.tensor_type.elem_type
    try:
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except (ValueError, RuntimeError, onnx.shape_inference.InferenceError):
        return True
    return bool(inferred.graph.output[0].type.tensor_type.HasField("shape"))
