"""The bodies that the ONNX specification itself gives to standard operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
import onnx_ir as ir

from ontrain.graph import OPSET, Builder
from ontrain.operators import form_of

__all__ = ["inline_specified", "specified_body"]


def inline_specified(op: Builder, node: ir.Node, inputs: Sequence[ir.Value | None]) -> list[ir.Value | None] | None:
    """Emit the specification's body of a standard operator in its place; None if it has none."""
    function = specified_body(node)
    if function is None or not function.node or any(a.HasField("g") for n in function.node for a in n.attribute):
        return None  # no body for these inputs, or one with control flow
    values: dict[str, ir.Value | None] = dict(zip(function.input, inputs, strict=False))
    for proto in function.node:
        bound = (_bound(attribute, node) for attribute in proto.attribute)
        outputs = op.add(
            ir.Node(
                proto.domain,
                proto.op_type,
                [values.get(name) for name in proto.input],
                [attribute for attribute in bound if attribute is not None],
                num_outputs=len(proto.output),
            )
        )
        values.update(zip(proto.output, outputs if isinstance(outputs, tuple) else (outputs,), strict=True))
    return [values.get(name) for name in function.output][: len(node.outputs)]


def specified_body(node: ir.Node) -> onnx.FunctionProto | None:
    """Return the body that the specification gives an operator for these inputs, or None."""
    schema: Any = form_of(node)  # onnx's stubs know only half of a schema's methods
    if schema is None:
        return None
    if schema.has_function:
        encoded = schema.get_function_with_opset_version(_newest(schema.function_opset_versions, schema))
    elif schema.has_context_dependent_function:
        types = [b"" if v is None else ir.to_proto(v).type.SerializeToString() for v in node.inputs]
        since = _newest(schema.context_dependent_function_opset_versions, schema)
        proto = ir.to_proto(node).SerializeToString()
        try:
            encoded = schema.get_context_dependent_function_with_opset_version(since, proto, types)
        except ValueError:  # an attribute is missing that the body is made of
            return None
    else:
        return None
    function = onnx.FunctionProto()
    function.ParseFromString(encoded)
    return function


def _newest(versions: Sequence[int], schema: Any) -> int:
    return max((v for v in versions if v <= max(OPSET, schema.since_version)), default=min(versions))


def _bound(attribute: onnx.AttributeProto, node: ir.Node) -> ir.Attr | None:
    """An attribute of a node in the body; one that refers to the operator's own takes its value or default."""
    if not attribute.ref_attr_name:
        return ir.serde.deserialize_attribute(attribute)
    own = node.attributes.get(attribute.ref_attr_name)
    if own is not None:
        return ir.Attr(attribute.name, own.type, own.value)
    schema = form_of(node)
    default = schema.attributes[attribute.ref_attr_name].default_value if schema is not None else None
    if default is None or not default.type:
        return None
    return ir.Attr(attribute.name, ir.AttributeType(default.type), ir.serde.deserialize_attribute(default).value)
