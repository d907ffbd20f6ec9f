"""What a hostile or damaged file is refused for, before anything native or recursive sees it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cache
from typing import Any

import onnx

from ontrain.errors import GraphError, nearest
from ontrain.files.experimental import experimental_schema
from ontrain.files.read import tensors_of
from ontrain.files.refused_nodes import check_labels
from ontrain.files.schemas import imports_of
from ontrain.files.tensors import check_tensor
from ontrain.limits import NESTING

__all__ = ["check_proto"]

Kind = onnx.AttributeProto
_LAYER_NORMALIZATION = 17
"""The opset that the operator came with."""
_ML = "ai.onnx.ml"
_FIELD = {
    Kind.FLOAT: "f", Kind.INT: "i", Kind.STRING: "s", Kind.TENSOR: "t", Kind.GRAPH: "g", Kind.FLOATS: "floats",
    Kind.INTS: "ints", Kind.STRINGS: "strings", Kind.TENSORS: "tensors", Kind.GRAPHS: "graphs",
    Kind.TYPE_PROTO: "tp",
}  # fmt: skip
"""The field of an attribute that holds its value, for the types that training knows."""

# Native shape inference and kernels divide by these.
_POSITIVE = (
    "strides", "dilations", "kernel_shape", "group", "blocksize", "num_outputs", "num_groups", "hidden_size",
    "q_num_heads", "kv_num_heads", "size", "pooled_shape",
)  # fmt: skip
# RoiAlign's default, zero samples, stands for as many as a region's size asks for. RotaryEmbedding's, zero heads, for
# as many as there are. Native inference reads shapes at batch_dims without looking.
_LEAST = {**dict.fromkeys(_POSITIVE, 1), "sampling_ratio": 0, "num_heads": 0, "batch_dims": 0}
# Native shape inference reads 32 bits of some of these: 2^40 is off to it, and on to whoever looks at the number.
_SWITCHES = frozenset({
    "transA", "transB", "keepdims", "ceil_mode", "count_include_pad", "storage_order", "exclusive", "reverse",
    "onesided", "inverse", "is_causal", "largest", "sorted", "fmod", "select_last_index", "noop_with_empty_axes",
    "antialias", "exclude_outside", "allowzero", "training_mode", "periodic", "upper", "input_forget", "layout",
    "linear_before_reset", "center_point_box", "normalize_variance", "across_channels", "saturate", "keep_aspect_ratio",
})  # fmt: skip
_LARGEST = 2**31 - 1
_DEEPEST_MESSAGE = 200
_VALUES = frozenset({"f", "i", "s", "t", "g", "floats", "ints", "strings", "tensors", "graphs"})
_STRING, _MESSAGE = (getattr(onnx.TensorProto.DESCRIPTOR.fields[0], f"TYPE_{kind}") for kind in ("STRING", "MESSAGE"))
# A copy of a tensor's data is made by looking at it.
_TENSOR_TEXT = [onnx.TensorProto.DESCRIPTOR.fields_by_name[name] for name in ("name", "doc_string", "external_data")]


def check_proto(proto: onnx.ModelProto, name: str) -> None:
    """Check names, order, operators, attributes and data of a model.

    Raises:
        GraphError: names the node or tensor and says what is wrong with it.
    """
    _check_text(proto, name, 0)
    _Checker(proto, name).check()


def _check_text(message: Any, name: str, depth: int) -> None:
    """Refuse names that are no text, which protobuf hands out as bytes, and messages too deep for recursion."""
    if depth > _DEEPEST_MESSAGE:
        raise GraphError(f"{name} nests messages more than {_DEEPEST_MESSAGE} deep")
    for field, value in _stated(message):
        kind = field.type
        if kind == _MESSAGE:
            for inner in (value,) if hasattr(value, "DESCRIPTOR") else value:
                _check_text(inner, name, depth + 1)
        elif kind == _STRING:
            for text in (value,) if isinstance(value, str | bytes) else value:
                if isinstance(text, bytes):
                    raise GraphError(f"{name} has a {field.name} that is no text", reason=f"it is {text[:40]!r}")


def _stated(message: Any) -> Iterable[tuple[Any, Any]]:
    """The fields that are there, with their values; of a tensor without its data."""
    if isinstance(message, onnx.TensorProto):
        return [(field, getattr(message, field.name)) for field in _TENSOR_TEXT]
    fields: list[tuple[Any, Any]] = message.ListFields()
    return fields


class _Form:
    """What a schema says of a node. onnx makes lists and dictionaries anew each time that it is asked for them."""

    def __init__(self, schema: onnx.defs.OpSchema) -> None:
        single = onnx.defs.OpSchema.FormalParameterOption.Single
        self.name, self.since_version = schema.name, schema.since_version
        self.inputs = schema.min_input, schema.max_input
        self.outputs = schema.min_output, schema.max_output
        self.operands = [formal.name if formal.option == single else "" for formal in schema.inputs]
        self.attributes = dict(schema.attributes)
        self.required = [name for name, spec in self.attributes.items() if spec.required]


@cache
def _standard_form(op_type: str, version: int, domain: str) -> _Form:
    return _Form(onnx.defs.get_schema(op_type, version, domain))


def _form(op_type: str, version: int, domain: str) -> _Form:
    """What onnx knows of an operator; that of another domain may change, for whoever likes registers it."""
    if domain in ("", _ML):
        return _standard_form(op_type, version, domain)
    return _Form(onnx.defs.get_schema(op_type, version, domain))


class _Checker:
    def __init__(self, proto: onnx.ModelProto, name: str) -> None:
        self.proto, self.name = proto, name
        self.functions = {(f.domain, f.name, f.overload) for f in proto.functions}
        if len(self.functions) != len(proto.functions):
            raise GraphError(f"{name} defines a function twice")

    def check(self) -> None:
        """Check the model from its tensors to its functions."""
        proto = self.proto
        for tensor in tensors_of(proto):
            check_tensor(tensor, f"in {self.name}")
        if proto.ir_version > onnx.IR_VERSION:
            raise GraphError(
                f"{self.name} is of IR version {proto.ir_version}",
                reason=f"the installed onnx knows versions to {onnx.IR_VERSION}",
                way_out="install a newer onnx, or write the model with an older one",
            )
        _check_versions(proto.opset_import, self.name)
        imports = imports_of(proto.opset_import)
        if not imports and proto.ir_version < 3:
            imports = {"": 1}
        self._graph(proto.graph, set(), imports, 0)
        for function in proto.functions:
            where = f"function {function.name!r} of {self.name}"
            _check_versions(function.opset_import, where)
            own = {**imports, **imports_of(function.opset_import, implied=False)}
            defined: set[str] = set()
            for value in function.input:
                _define(defined, value, where)
            self._nodes(function.node, defined, own, where, 0)
            _made(function.output, defined, where)

    def _graph(self, graph: onnx.GraphProto, outer: set[str], imports: dict[str, int], depth: int) -> None:
        where = f"graph {graph.name!r} of {self.name}" if depth else self.name
        if depth > NESTING:
            raise GraphError(f"{self.name} nests subgraphs more than {NESTING} deep")
        inputs = set[str]()
        for value in graph.input:
            _define(inputs, value.name, where)
        # As in onnxruntime, what a body is given may have the name of an outer value, which it then hides.
        defined = outer | inputs
        stored: set[str] = set()
        for tensor in graph.initializer:
            _define(stored, tensor.name, where)
            if tensor.name not in inputs:
                _define(defined, tensor.name, where)
        for value_info in (*graph.input, *graph.output, *graph.value_info):
            _value(value_info, where)
        self._nodes(graph.node, defined, imports, where, depth)
        outputs = [value.name for value in graph.output]
        if not outputs and depth == 0:
            raise GraphError(f"{self.name} has no outputs")
        _made(outputs, defined, where)

    def _nodes(
        self, nodes: Iterable[onnx.NodeProto], defined: set[str], imports: dict[str, int], where: str, depth: int
    ) -> None:
        for node in nodes:
            text = _text(node)
            for used in node.input:
                if used and used not in defined:
                    raise GraphError(
                        f"value {used!r} is used before it is made",
                        node=text,
                        reason=f"{where} is damaged, not in order, or goes in a circle",
                        way_out="sort the nodes so that each comes after what it reads",
                    )
            self._operator(node, imports, text)
            check_labels(node)
            for attribute in node.attribute:
                _attribute(attribute, text, classical=node.domain == _ML)  # there NaN stands for a missing value
                for inner in (attribute.g, *attribute.graphs) if attribute.HasField("g") else attribute.graphs:
                    self._graph(inner, defined, imports, depth + 1)
            for output in node.output:
                if output:
                    _define(defined, output, where, text)

    def _operator(self, node: onnx.NodeProto, imports: dict[str, int], text: str) -> None:
        names = [attribute.name for attribute in node.attribute]
        if len(set(names)) != len(names):
            raise GraphError("an attribute is given twice", node=text)
        if (node.domain, node.op_type, node.overload) in self.functions:
            return
        domain = "" if node.domain == "ai.onnx" else node.domain
        if domain not in imports:
            raise GraphError(
                f"operator {node.op_type!r} is of domain {domain or 'ai.onnx'!r}, which {self.name} does not import",
                node=text,
                way_out=f"imported: {', '.join(repr(d or 'ai.onnx') for d in imports)}",
            )
        # onnxruntime writes it into files of every opset: its optimisers made it before the standard had it. There it
        # may have attributes of any name, which nothing reads; so may operators that onnx does not know.
        is_early = not domain and node.op_type == "LayerNormalization" and imports[domain] < _LAYER_NORMALIZATION
        version = _LAYER_NORMALIZATION if is_early else imports[domain]
        own = None if domain else experimental_schema(node.op_type, version)
        try:
            form = _form(node.op_type, version, domain) if own is None else _Form(own)
        except onnx.defs.SchemaError as error:
            if domain in ("", _ML):
                known = {schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == domain}
                raise GraphError(
                    f"there is no operator {node.op_type!r} at opset {imports[domain]}",
                    node=text,
                    way_out=f"nearest: {nearest(node.op_type, known)}",
                ) from error
            return  # of another domain: known to ontrain or refused once functions are inlined
        _arity(node, form, text)
        is_foreign = own is not None and not onnx.defs.has(node.op_type)
        _schema_attributes(node, form, text, takes_others=is_early or is_foreign)


def _check_versions(imports: Iterable[onnx.OperatorSetIdProto], where: str) -> None:
    newest = onnx.defs.onnx_opset_version()
    for domain, version in imports_of(imports, implied=False).items():
        if not 1 <= version <= (_LARGEST if domain else newest):
            raise GraphError(
                f"{where} asks for opset {version}",
                reason=f"the installed onnx knows 1 to {newest}",
                way_out="install a newer onnx, or export the model at an older opset",
            )


def _define(defined: set[str], name: str, where: str, node: str | None = None) -> None:
    if not name:
        raise GraphError(f"{where} has a value without a name", node=node)
    if name in defined:
        raise GraphError(f"the name {name!r} is defined twice in {where}", node=node)
    defined.add(name)


def _made(outputs: Iterable[str], defined: set[str], where: str) -> None:
    for name in outputs:
        if name not in defined:
            raise GraphError(f"output {name!r} of {where} is made by no node")


def _value(info: onnx.ValueInfoProto, where: str) -> None:
    if info.type.HasField("sparse_tensor_type"):
        raise GraphError(
            f"value {info.name!r} in {where} is a sparse tensor",
            reason="only onnxruntime's providers have these; initializers and constants may be sparse",
            way_out="use CPUExecutionProvider",
        )
    dims = info.type.tensor_type.shape.dim
    for dim in dims:
        if dim.HasField("dim_value") and dim.dim_value < -1:
            raise GraphError(f"value {info.name!r} in {where} has the dimension {dim.dim_value}")


def _arity(node: onnx.NodeProto, form: _Form, text: str) -> None:
    for what, stated, (least, most) in (
        ("inputs", len(node.input), form.inputs), ("outputs", len(node.output), form.outputs),
    ):  # fmt: skip
        if not least <= stated <= most:
            wanted = str(least) if least == most else f"{least} to {most}" if most < _LARGEST else f"{least} or more"
            raise GraphError(f"{form.name} takes {wanted} {what}, it has {stated}", node=text)
    for wanted, name in zip(form.operands, node.input, strict=False):
        if wanted and not name:
            raise GraphError(f"{form.name} lacks its input {wanted!r}", node=text)
    if not any(node.output):
        raise GraphError(f"{form.name} has no named output", node=text)


def _schema_attributes(node: onnx.NodeProto, form: _Form, text: str, *, takes_others: bool = False) -> None:
    attributes = {attribute.name: attribute for attribute in node.attribute}
    for name, attribute in attributes.items():
        spec = form.attributes.get(name)
        if spec is None and takes_others:
            continue
        if spec is None:
            known = list(form.attributes)
            raise GraphError(
                f"{form.name} has no attribute {name!r} at opset {form.since_version}",
                node=text,
                way_out=f"nearest: {nearest(name, known)}",
            )
        wanted = int(spec.type.value)  # type: ignore[attr-defined]  # onnx's stubs take the enumeration for a class
        if attribute.type != wanted:
            raise GraphError(
                f"attribute {name!r} is of type {_kind(attribute.type)}, {form.name} takes {_kind(wanted)}", node=text
            )
        if name in _SWITCHES and wanted == Kind.INT and not attribute.ref_attr_name and attribute.i not in (0, 1):
            raise GraphError(f"attribute {name!r} is {attribute.i}", node=text, reason="it is a switch: 0 or 1")
    for name in form.required:
        if name not in attributes:
            raise GraphError(f"{form.name} lacks its attribute {name!r}", node=text)


def _kind(number: int) -> str:
    known = dict(onnx.AttributeProto.AttributeType.items())
    return next((name for name, value in known.items() if value == number), str(number))


def _attribute(attribute: onnx.AttributeProto, text: str, *, classical: bool) -> None:
    name = attribute.name
    if not name:
        raise GraphError("an attribute has no name", node=text)
    if attribute.ref_attr_name:
        return
    field = _FIELD.get(attribute.type)
    if field is None:
        raise GraphError(
            f"attribute {name!r} is of type {_kind(attribute.type)}", node=text, reason="training knows no such values"
        )
    filled = [stated.name for stated, _ in attribute.ListFields() if stated.name in _VALUES]
    # IR version 3 writers leave the field of a zero or an empty list out.
    if any(f != field for f in filled):
        raise GraphError(f"attribute {name!r} holds {', '.join(filled)} where its type says {field}", node=text)
    values = getattr(attribute, field) if len(field) > 1 else [getattr(attribute, field)]
    if not classical and field in ("f", "floats") and any(map(math.isnan, values)):
        raise GraphError(f"attribute {name!r} is not a number", node=text)
    for string in values if field in ("s", "strings") else ():
        try:
            string.decode()
        except UnicodeDecodeError as error:
            raise GraphError(f"attribute {name!r} is no text", node=text, reason=str(error)) from error
    least = _LEAST.get(name) if field in ("i", "ints") else None
    if least is not None and any(not least <= value <= _LARGEST for value in values):
        reason = "it must be positive" if least else "it must not be negative"
        raise GraphError(f"attribute {name!r} is {list(values)}", node=text, reason=reason)


def _text(node: onnx.NodeProto) -> str:
    op = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    called = f" {node.name!r}" if node.name else ""
    return f"{op}{called}({', '.join(node.input)}) -> {', '.join(node.output)}"
