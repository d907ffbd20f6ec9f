"""What onnx's own inference says of the sizes of outputs, as onnxruntime asks it."""

from __future__ import annotations

import onnx
import onnx.shape_inference

__all__ = ["inferred_sizes", "is_optimised"]

_FEW = 1024
"""Bytes of a stored tensor whose values shapes may depend on."""
_UNKNOWN = "unk__"
"""How onnx begins the names of sizes that it cannot tell."""

Sizes = list[int | str | None]


def inferred_sizes(proto: onnx.ModelProto) -> dict[str, Sizes] | None:
    """Return the sizes of outputs that follow from the graph, whatever the file says of them.

    Args:
        proto: the model, left untouched.

    Returns:
        By the name of an output that is a tensor its sizes, names of the inputs' among them; None for a size that does
        not follow. Outputs are missing that may have any number of sizes. None where the file contradicts itself.
    """
    model = onnx.ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import, functions=proto.functions)
    graph = model.graph
    graph.name = "sizes"
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
    for output in proto.graph.output:
        value = graph.output.add()
        value.CopyFrom(output)
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    try:
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except (ValueError, RuntimeError, onnx.shape_inference.InferenceError):
        return None
    return {
        value.name: [_size(dim) for dim in value.type.tensor_type.shape.dim]
        for value in inferred.graph.output
        if value.type.tensor_type.HasField("shape")
    }


def is_optimised(graph: onnx.GraphProto) -> bool:
    """Return whether onnxruntime's plainest optimisers change a graph: a copy, a node twice, a node of constants."""
    constants, nodes = {tensor.name for tensor in graph.initializer}, set[bytes]()
    for node in graph.node:
        if node.op_type == "Constant":
            constants.update(node.output)
            continue
        alike = onnx.NodeProto()
        alike.CopyFrom(node)
        alike.ClearField("name")
        alike.ClearField("output")
        content = alike.SerializeToString(deterministic=True)
        if node.op_type == "Identity" or content in nodes or (node.input and constants.issuperset(node.input)):
            return True
        nodes.add(content)
    return False


def _size(dim: onnx.TensorShapeProto.Dimension) -> int | str | None:
    if dim.HasField("dim_value"):
        return dim.dim_value
    return None if dim.dim_param.startswith(_UNKNOWN) else dim.dim_param or None
