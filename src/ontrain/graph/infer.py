"""Shape and dtype inference of one node: onnx's own rules for standard operators, ours for composites."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cache, lru_cache

import numpy as np
import onnx
import onnx_ir as ir
from onnx import shape_inference

from ontrain.errors import GraphError
from ontrain.graph.axes import check_axes
from ontrain.graph.blame import blamed_on, blamed_on_whole
from ontrain.graph.blocks import check_blocks
from ontrain.graph.indices import check_indices
from ontrain.graph.misfits import check_misfits, check_result
from ontrain.graph.source import describe, source_of
from ontrain.operators import DOMAIN, OPSET, Rows, View, attribute_of, form_of, record_of, schema_of

__all__ = ["TypeAndShape", "UntypedError", "infer_node", "register_inference", "take_shape", "type_and_shape"]

TypeAndShape = tuple[ir.DataType, ir.Shape]
Inference = Callable[[ir.Node], Sequence[TypeAndShape | None]]
_Answer = tuple[ir.DataType, tuple[int | str | None, ...]]

_ours: dict[tuple[str, str], Inference] = {}
# Element counts up to which the values of a constant that is no setting are shown to shape inference.
_DATA_LIMIT = 256
_NOT_COMPARED = frozenset({
    ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS, ir.AttributeType.TENSORS, ir.AttributeType.SPARSE_TENSOR,
    ir.AttributeType.SPARSE_TENSORS, ir.AttributeType.TYPE_PROTO, ir.AttributeType.TYPE_PROTOS,
})  # fmt: skip
_ANSWERS = 1 << 15
_answers: dict[Hashable, Sequence[TypeAndShape | None]] = {}
"""What inference said of nodes that are alike: a model has few kinds, and each pass looks at each node anew."""


_TAKES_SHAPE = "ontrain.takes_shape"


def take_shape(reshaped: ir.Value) -> ir.Value:
    """Let the result of a Reshape to another value's Shape have that value's sizes by name, and return it.

    It is for what stands in place of one operator that keeps sizes. Where a file writes these two itself, onnxruntime
    tells no names either.
    """
    node = reshaped.producer()
    assert node is not None
    node.metadata_props[_TAKES_SHAPE] = "1"
    return reshaped


class UntypedError(GraphError):
    """The type of a value is not known before the graph runs, or it is no tensor."""


def register_inference(op_type: str, inference: Inference, domain: str = DOMAIN) -> None:
    """Register shape inference for an operator that onnx does not know."""
    _ours[domain, op_type] = inference


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
        check_misfits(node)
        problem = "the inputs do not fit the operator"
        with blamed_on_whole(node, problem), blamed_on(node, problem):
            return ours(node)
    if schema_of(node.op_type, node.domain) is None:
        check_misfits(node)
        if record_of(node).foreign:
            raise UntypedError(
                f"operator {node.domain}::{node.op_type} has no shape function", node=describe(node),
                reason="a plan needs the type of every value", way_out=f"register one with @{node.op_type}.shape",
            )  # fmt: skip
        raise GraphError(f"operator {node.op_type} is unknown at opset {OPSET}", node=describe(node))
    answer = _answered(node)
    check_indices(node)
    like = _shape_to_take_on(node) if _TAKES_SHAPE in node.metadata_props else None
    if like is not None and answer[0] is not None:
        return [(answer[0][0], ir.Shape(like))]
    return answer


def _check_dtypes(node: ir.Node) -> None:
    """Refuse a node that reads what is no dense tensor."""
    for value in node.inputs:
        if value is not None and value.dtype is None:
            maker = value.producer()
            raise UntypedError(
                f"value {value.name!r} has no dtype", node=describe(node), source=source_of(node),
                reason=f"{'what makes it' if maker is None else maker.op_type} gives no dense tensor",
                way_out="put tensors in place of sequences, optional values and strings; InferenceSession runs them",
            )  # fmt: skip


def _answered(node: ir.Node) -> Sequence[TypeAndShape | None]:
    """What onnx's own inference says, or said of a node like this one, which was found to fit its inputs."""
    question = _question(node)
    answer = None if question is None else _answers.get(question)
    if answer is None:
        for check in (check_misfits, check_axes, check_indices, check_blocks, _check_dtypes):
            check(node)
        answer = [inferred and (inferred[0], ir.Shape(inferred[1], frozen=True)) for inferred in _asked(node)]
        for inferred in answer:
            if inferred is not None:
                check_result(node, inferred[1])
        if question is not None:
            if len(_answers) >= _ANSWERS:
                _answers.clear()
            _answers[question] = answer
    return answer


def _shape_to_take_on(node: ir.Node) -> tuple[int | str | None, ...] | None:
    """The sizes of the value whose shape a Reshape takes on, with their names; onnx infers the rank only."""
    target = node.inputs[1]
    maker = target.producer() if target is not None else None
    return None if maker is None or maker.inputs[0] is None else _dims(maker.inputs[0].shape)


def _question(node: ir.Node) -> Hashable:
    """All that inference looks at of a node; None if a graph or a reference is among it."""
    attributes = []
    for attribute in node.attributes.values():
        value = attribute.value
        if attribute.is_ref() or attribute.type in _NOT_COMPARED:
            return None
        if attribute.type == ir.AttributeType.TENSOR:
            value = value.dtype, tuple(value.shape), _contents(value)
        attributes.append((attribute.name, attribute.type, value if isinstance(value, Hashable) else tuple(value)))
    return (
        node.domain, node.op_type, tuple(_of_input(node, i) for i in range(len(node.inputs))), tuple(attributes),
        len(node.outputs),
    )  # fmt: skip


def _of_input(node: ir.Node, i: int) -> Hashable:
    value = node.inputs[i]
    if value is None:
        return None
    const = _shown(node, i)
    data = None if const is None else _contents(const)
    return value.dtype, None if value.shape is None else value.shape.dims, data


def _shown(node: ir.Node, i: int) -> ir.TensorProtocol | None:
    """The constant at input i if inference looks at its values: sizes of however many parts, or any small constant."""
    value = node.inputs[i]
    const = None if value is None else value.const_value
    return const if const is not None and (const.size <= _DATA_LIMIT or i in record_of(node).settings) else None


def _contents(tensor: ir.TensorProtocol) -> Hashable:
    array = np.asarray(tensor.numpy())
    return tuple(array.reshape(-1)) if array.dtype == object else array.tobytes()


def _asked(node: ir.Node) -> Sequence[_Answer | None]:
    """What onnx's own inference says."""
    schema = form_of(node)
    assert schema is not None
    proto, types, data = _as_onnx(node)
    try:
        inferred = shape_inference.infer_node_outputs(
            schema, proto, types, data, opset_imports=_imports(node.domain, max(OPSET, schema.since_version))
        )
    except (shape_inference.InferenceError, onnx.checker.ValidationError, RuntimeError, ValueError, TypeError,
            MemoryError, IndexError) as error:  # fmt: skip
        reason = str(error).strip().rpartition("\n")[2].strip() or type(error).__name__
        raise GraphError("the inputs do not fit the operator", node=describe(node), reason=reason) from error
    answer = [_from_proto(inferred.get(f"o{i}")) for i in range(len(node.outputs))]
    record = record_of(node)
    if answer[0] is not None and record.resized is not None and answer[0][1] is not None:
        answer[0] = answer[0][0], tuple(record.resized(node, answer[0][1]) or answer[0][1])
    if answer[0] is None and record.like_first and node.inputs and node.inputs[0] is not None:
        dtype, shape = type_and_shape(node.inputs[0])
        answer[0] = dtype, _dims(shape) or ()
    return answer if answer != [None] * len(answer) else _parts(node) or answer


def _as_onnx(node: ir.Node) -> tuple[onnx.NodeProto, dict[str, onnx.TypeProto], dict[str, onnx.TensorProto]]:
    """A node with inputs i0, i1, … and outputs o0, o1, …; its inputs' types, and the values of small constants."""
    proto = onnx.NodeProto(op_type=node.op_type, domain=node.domain)
    types: dict[str, onnx.TypeProto] = {}
    data: dict[str, onnx.TensorProto] = {}
    for i, value in enumerate(node.inputs):
        proto.input.append("" if value is None else f"i{i}")
        if value is None:
            continue
        assert value.dtype is not None
        types[f"i{i}"] = _tensor_type(value.dtype, _dims(value.shape))
        const = _shown(node, i)
        if const is not None:
            data[f"i{i}"] = onnx.numpy_helper.from_array(np.asarray(const.numpy()), f"i{i}")
    proto.output.extend(f"o{i}" for i in range(len(node.outputs)))
    # Not ir.to_proto: it asks protocol after protocol whether this is one, which takes longer than the inference.
    serde = ir.serde
    proto.attribute.extend(
        serde.serialize_reference_attribute(attr) if attr.is_ref() else serde.serialize_attribute(attr)
        for attr in node.attributes.values()
    )
    return proto, types, data


def _parts(node: ir.Node) -> list[_Answer | None] | None:
    """Parts of a known size whose own sizes are not constant: onnx's inference says nothing of them."""
    record, first = record_of(node), node.inputs[0] if node.inputs else None
    if record.view is not View.PART or record.rows is not Rows.ALONG_AXIS or first is None or first.shape is None:
        return None
    dtype, shape = type_and_shape(first)
    dims = list(_dims(shape) or ())
    dims[attribute_of(node, "axis")] = None
    return [(dtype, tuple(dims)) for _ in node.outputs]


@cache
def _imports(domain: str, version: int) -> list[onnx.OperatorSetIdProto]:
    return [onnx.OperatorSetIdProto(domain=domain, version=version)]


def _dims(shape: ir.Shape | None) -> tuple[int | str | None, ...] | None:
    return None if shape is None else tuple(dim if isinstance(dim, int) else dim.value for dim in shape)


@lru_cache(maxsize=4096)
def _tensor_type(dtype: ir.DataType, shape: tuple[int | str | None, ...] | None) -> onnx.TypeProto:
    """A type as onnx writes it; it is only read."""
    proto = onnx.TypeProto()
    proto.tensor_type.elem_type = dtype.value
    if shape is not None:
        proto.tensor_type.shape.SetInParent()
        for dim in shape:
            dimension = proto.tensor_type.shape.dim.add()
            if isinstance(dim, int):
                dimension.dim_value = dim
            elif dim is not None:
                dimension.dim_param = dim
    return proto


def _from_proto(proto: onnx.TypeProto | None) -> _Answer | None:
    if proto is None or not proto.HasField("tensor_type") or not proto.tensor_type.HasField("shape"):
        return None
    tensor = proto.tensor_type
    dims: list[int | str | None] = []
    for dim in tensor.shape.dim:
        dims.append(dim.dim_value if dim.HasField("dim_value") else (dim.dim_param or None))
    return ir.DataType(tensor.elem_type), tuple(dims)
