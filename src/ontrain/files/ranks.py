"""What onnx's own inference tells of a model's outputs, as onnxruntime asks it."""

from __future__ import annotations

from collections.abc import Iterable

import onnx
import onnx.shape_inference

from ontrain.files.inferred_shapes import inferred_graph

__all__ = ["infers_rank", "with_types"]


def infers_rank(proto: onnx.ModelProto, name: str) -> bool:
    """Return whether onnx infers how many sizes an output has, whatever the file says of it.

    Args:
        proto: the model, left untouched.
        name: of the output.
    """
    stated = next(value for value in proto.graph.output if value.name == name)
    asked = onnx.ValueInfoProto(name=name)
    asked.type.tensor_type.elem_type = stated.type.tensor_type.elem_type
    inferred = _inferred(proto, [asked])
    return True if inferred is None else bool(inferred[0].type.tensor_type.HasField("shape"))


def with_types(proto: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """Return the outputs; those to which the file gives no type with the type that onnx infers, if it infers one.

    Args:
        proto: the model, left untouched.
    """
    outputs = list(proto.graph.output)
    if all(value.type.WhichOneof("value") for value in outputs):
        return outputs
    inferred = _inferred(proto, outputs) or outputs
    named = {dim.dim_param for value in proto.graph.input for dim in _dims(value.type)}
    for stated, value in zip(outputs, inferred, strict=True):
        if not stated.type.WhichOneof("value"):
            for dim in _dims(value.type):
                if dim.dim_param not in named:  # onnx makes names up
                    dim.ClearField("dim_param")
    return inferred


def _dims(kind: onnx.TypeProto) -> Iterable[onnx.TensorShapeProto.Dimension]:
    """The sizes of a tensor, and of the tensors that a sequence or an optional value holds."""
    while kind.WhichOneof("value") in ("sequence_type", "optional_type"):
        kind = getattr(kind, str(kind.WhichOneof("value"))).elem_type
    return kind.tensor_type.shape.dim if kind.HasField("tensor_type") else ()


def _inferred(proto: onnx.ModelProto, outputs: Iterable[onnx.ValueInfoProto]) -> list[onnx.ValueInfoProto] | None:
    """What onnx infers of these outputs, without the values of weights; None where it infers nothing at all."""
    try:
        return list(inferred_graph(proto, outputs).output)
    except (ValueError, RuntimeError, MemoryError, onnx.shape_inference.InferenceError):
        return None
