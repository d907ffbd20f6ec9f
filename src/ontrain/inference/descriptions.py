"""What a session tells of a file: its inputs and outputs, sizes under the file's names, and its metadata."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import onnx
import onnx_ir as ir

from ontrain.errors import GraphError
from ontrain.files import infers_rank

__all__ = ["ModelMetadata", "NodeArg", "element_type", "metadata_of", "node_arg_of", "output_args"]


_NO_VERSION = 2**63 - 1
"""What onnxruntime tells of a file that states no version of its model."""


@dataclass(frozen=True)
class NodeArg:
    """An input or output as onnxruntime describes one: name, type such as "tensor(float)", sizes or their names."""

    name: str
    type: str
    shape: list[int | str | None]

    def __str__(self) -> str:
        """Return what onnxruntime's writes."""
        return f"NodeArg(name={self.name!r}, type={self.type!r}, shape={self.shape!r})"


@dataclass
class ModelMetadata:
    """What the file says about itself, under onnxruntime's names; like onnxruntime's, it may be written to."""

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: dict[str, str] = field(default_factory=dict)


def metadata_of(proto: onnx.ModelProto) -> ModelMetadata:
    """Return what a file says about itself."""
    custom = {entry.key: entry.value for entry in proto.metadata_props}
    version = proto.model_version if proto.HasField("model_version") else _NO_VERSION
    return ModelMetadata(
        proto.producer_name, proto.graph.name, proto.domain, proto.doc_string, proto.graph.doc_string, version, custom,
    )  # fmt: skip


def node_arg_of(value: onnx.ValueInfoProto) -> NodeArg:
    """Return the description of an input or output of the file."""
    kind = value.type.optional_type.elem_type if value.type.HasField("optional_type") else value.type
    dims: list[int | str | None] = [
        (dim.dim_value if dim.dim_value >= 0 else None) if dim.HasField("dim_value") else dim.dim_param or None
        for dim in kind.tensor_type.shape.dim
    ]
    return NodeArg(value.name, _type_text(value.type), dims)


def _type_text(kind: onnx.TypeProto) -> str:
    """A type as onnxruntime writes it."""
    if kind.HasField("sequence_type"):
        return f"seq({_type_text(kind.sequence_type.elem_type)})"
    if kind.HasField("optional_type"):
        return f"optional({_type_text(kind.optional_type.elem_type)})"
    if kind.HasField("map_type"):
        key = element_type(kind.map_type.key_type).name.lower()
        return f"map({key},{_type_text(kind.map_type.value_type)})"
    return f"tensor({element_type(kind.tensor_type.elem_type).name.lower()})"


def element_type(number: int) -> ir.DataType:
    """Return an element type by its number in a file.

    Raises:
        GraphError: there is no such type.
    """
    try:
        return ir.DataType(number)
    except ValueError as error:
        raise GraphError(f"there is no element type {number}", reason="the file is damaged") from error


def _node_arg(value: ir.Value) -> NodeArg:
    assert value.name is not None and value.dtype is not None
    dims = [] if value.shape is None else [d if isinstance(d, int) else d.value for d in value.shape]
    return NodeArg(value.name, f"tensor({value.dtype.name.lower()})", dims)


def output_args(model: ir.Model, proto: onnx.ModelProto, fed: Collection[str], *, changed: bool) -> list[NodeArg]:
    """Return the outputs under the names of their sizes in the file; see `_stated`.

    Args:
        model: the graph with all types.
        proto: the file.
        fed: names of the inputs that are fed.
        changed: whether optimisation changed the graph.
    """
    inputs = [_node_arg(value) for value in model.graph.inputs if value.name in fed]
    stated = [node_arg_of(value) for value in proto.graph.input if value.name in fed]
    dims = _dims_of_the_file(inputs, stated)
    outputs = zip(model.graph.outputs, proto.graph.output, strict=True)
    return [_stated(value, output, dims, proto, changed=changed) for value, output in outputs]


def _dims_of_the_file(inputs: Sequence[NodeArg], stated: Sequence[NodeArg]) -> dict[int | str | None, str | None]:
    """By the names that sizes got while the file was loaded, what the file has in their place."""
    pairs = [
        pair for own, told in zip(inputs, stated, strict=True) for pair in zip(own.shape, told.shape, strict=False)
    ]
    return {own: dim for own, dim in pairs if own != dim and not isinstance(dim, int)}


def _stated(
    value: ir.Value, output: onnx.ValueInfoProto, dims: Mapping[int | str | None, str | None], proto: onnx.ModelProto,
    *, changed: bool,
) -> NodeArg:  # fmt: skip
    """An output under the names of its sizes in the file; numbers that follow from the graph stand in for names.

    As in onnxruntime, where the file contradicts the graph, neither is told: not the sizes where their number differs,
    and no size that the two have different. A contradiction that onnxruntime does not see is told as the file has it.
    Where optimisation changed the graph, onnxruntime has inferred the sizes anew, and what the file says is forgotten.
    """
    inferred, stated = _node_arg(value), node_arg_of(output).shape
    own = stated if value.shape is None else [dims.get(dim, dim) for dim in inferred.shape]
    if output.type.tensor_type.HasField("shape"):
        clash = _clash(own, stated)
        if clash is not None and not infers_rank(proto, output.name):
            own, clash = stated, None
        if clash is None:
            own = [_told(size, dim) for size, dim in zip(own, stated, strict=True)]
        elif not changed:
            pairs = [] if len(own) != len(stated) else zip(own, stated, strict=True)
            own = [_agreed(size, dim, at < clash) for at, (size, dim) in enumerate(pairs)]
    return NodeArg(output.name, inferred.type, own)


def _clash(sizes: Sequence[int | str | None], stated: Sequence[int | str | None]) -> int | None:
    """The first place at which the file states another number than follows from the graph; 0 for another rank."""
    if len(sizes) != len(stated):
        return 0
    pairs = enumerate(zip(sizes, stated, strict=True))
    return next((at for at, pair in pairs if all(isinstance(n, int) for n in pair) and pair[0] != pair[1]), None)


def _agreed(size: int | str | None, stated: int | str | None, is_merged: bool) -> int | str | None:
    """What is left of a size where others clash: those before the clash have been merged."""
    return size if size == (_told(size, stated) if is_merged else stated) else None


def _told(size: int | str | None, stated: int | str | None) -> int | str | None:
    """What is told of a size that follows from the graph, and of which the file states a number, a name or nothing."""
    return size if isinstance(size, int) or stated is None else stated
