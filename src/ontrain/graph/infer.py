"""Shape and dtype inference of one node: onnx's own rules for standard operators, ours for composites."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import onnx
import onnx_ir as ir
from onnx import shape_inference

from ontrain.errors import GraphError
from ontrain.graph.axes import check_axes
from ontrain.graph.blame import blamed_on
from ontrain.graph.blocks import check_blocks
from ontrain.graph.indices import check_indices
from ontrain.graph.source import describe

__all__ = ["DOMAIN", "OPSET", "TypeAndShape", "infer_node", "register_inference", "schema_of", "type_and_shape"]

OPSET = 23
"""Version of the default ONNX operator set inside ontrain."""
DOMAIN = "ontrain"
"""Domain of ontrain's composite operators."""

TypeAndShape = tuple[ir.DataType, ir.Shape]
Inference = Callable[[ir.Node], Sequence[TypeAndShape]]

_ours: dict[tuple[str, str], Inference] = {}
# onnx gives these a function body instead of an inference rule.
_LIKE_FIRST = frozenset({"GroupNormalization", "MeanVarianceNormalization"})
# Element counts up to which a constant's values are shown to shape inference (shapes, axes, pads are this small).
_DATA_LIMIT = 256


def register_inference(op_type: str, inference: Inference, domain: str = DOMAIN) -> None:
    """Register shape inference for an operator that onnx does not know."""
    _ours[domain, op_type] = inference


@cache
def schema_of(op_type: str, domain: str = "", version: int = OPSET) -> onnx.defs.OpSchema | None:
    """Return the operator's schema at `version`, the first later one for a newer operator; None if there is none."""
    for at in (version, *range(version + 1, onnx.defs.onnx_opset_version() + 1)):
        try:
            return onnx.defs.get_schema(op_type, at, domain)
        except onnx.defs.SchemaError:
            continue
    return None


def type_and_shape(value: ir.Value) -> TypeAndShape:
    """Return dtype and shape of a value that must have both."""
    if value.dtype is None or value.shape is None:
        raise GraphError(f"value {value.name!r} has no dtype or shape", reason="inference stopped before it")
    return value.dtype, value.shape


def infer_node(node: ir.Node) -> Sequence[TypeAndShape | None]:
    """Return dtype and shape of each output of `node`; None for an output that inference cannot know.

    Raises:
        GraphError: the inputs do not fit the operator.
    """
    ours = _ours.get((node.domain, node.op_type))
    if ours is not None:
        with blamed_on(node, "the inputs do not fit the operator"):
            return ours(node)
    schema = schema_of(node.op_type, node.domain)
    if schema is None:
        raise GraphError(f"operator {node.op_type} is unknown at opset {OPSET}", node=describe(node))
    check_axes(node)
    check_indices(node)
    check_blocks(node)
    proto = onnx.NodeProto(op_type=node.op_type, domain=node.domain)
    types: dict[str, onnx.TypeProto] = {}
    data: dict[str, onnx.TensorProto] = {}
    for i, value in enumerate(node.inputs):
        proto.input.append("" if value is None else f"i{i}")
        if value is None:
            continue
        if value.dtype is None:
            raise GraphError(
                f"value {value.name!r} has no dtype", node=describe(node), reason="what makes it gives no dense tensor"
            )
        types[f"i{i}"] = _type_proto(value)
        const = value.const_value
        if const is not None and const.size <= _DATA_LIMIT:
            data[f"i{i}"] = onnx.numpy_helper.from_array(np.asarray(const.numpy()), f"i{i}")
    proto.output.extend(f"o{i}" for i in range(len(node.outputs)))
    # Not ir.to_proto: it asks protocol after protocol whether this is one, which takes longer than the inference.
    serde = ir.serde
    proto.attribute.extend(
        serde.serialize_reference_attribute(attr) if attr.is_ref() else serde.serialize_attribute(attr)
        for attr in node.attributes.values()
    )
    try:
        found = shape_inference.infer_node_outputs(
            schema, proto, types, data, opset_imports=_imports(node.domain, max(OPSET, schema.since_version))
        )
    except (shape_inference.InferenceError, onnx.checker.ValidationError, RuntimeError, ValueError, TypeError,
            MemoryError, IndexError) as error:  # fmt: skip
        reason = str(error).strip().rpartition("\n")[2].strip() or type(error).__name__
        raise GraphError("the inputs do not fit the operator", node=describe(node), reason=reason) from error
    known = [_from_proto(found.get(f"o{i}")) for i in range(len(node.outputs))]
    if known[0] is None and node.op_type in _LIKE_FIRST and node.inputs[0] is not None:
        known[0] = type_and_shape(node.inputs[0])
    return known


@cache
def _imports(domain: str, version: int) -> list[onnx.OperatorSetIdProto]:
    return [onnx.OperatorSetIdProto(domain=domain, version=version)]


def _type_proto(value: ir.Value) -> onnx.TypeProto:
    proto = onnx.TypeProto()
    assert value.dtype is not None
    proto.tensor_type.elem_type = value.dtype.value
    if value.shape is not None:
        shape = proto.tensor_type.shape
        shape.ClearField("dim")
        for dim in value.shape:
            one = shape.dim.add()
            if isinstance(dim, int):
                one.dim_value = dim
            elif dim.value is not None:
                one.dim_param = dim.value
        shape.SetInParent()
    return proto


def _from_proto(proto: onnx.TypeProto | None) -> TypeAndShape | None:
    if proto is None or not proto.HasField("tensor_type") or not proto.tensor_type.HasField("shape"):
        return None
    tensor = proto.tensor_type
    dims: list[int | str | None] = []
    for dim in tensor.shape.dim:
        dims.append(dim.dim_value if dim.HasField("dim_value") else (dim.dim_param or None))
    return ir.DataType(tensor.elem_type), ir.Shape(dims)
