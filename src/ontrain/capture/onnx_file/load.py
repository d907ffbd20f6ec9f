"""`load_onnx`: an ONNX file and a choice of its initializers become a graph to train."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx_ir as ir
import torch

from ontrain.capture.arrays import to_tensor
from ontrain.capture.names import REQUIRES_GRAD
from ontrain.capture.onnx_file.choose import Choice, choose
from ontrain.capture.onnx_file.classical import number_labels, numbers_only
from ontrain.capture.onnx_file.constants import settle_constants
from ontrain.capture.onnx_file.functions import inline_functions
from ontrain.capture.onnx_file.gradients import mark_derivatives
from ontrain.capture.onnx_file.loops import check_loops
from ontrain.capture.onnx_file.modes import as_filed, to_inference, to_training
from ontrain.capture.onnx_file.sequences import take_sequences_apart
from ontrain.capture.onnx_file.upgrade import upgrade
from ontrain.errors import GraphError, OptionError, nearest
from ontrain.files import Source, check_proto, imports_of, in_order, left_data, read_proto
from ontrain.graph import OPSET, Role, annotate, every_node, rebuild, set_role, subgraphs, verify
from ontrain.operators import holds_programs

__all__ = ["FiledModel", "OnnxModel", "load_filed", "load_onnx"]

_STACK_TRACE = "pkg.torch.onnx.stack_trace"


@dataclass
class OnnxModel:
    """An ONNX file as a graph to train.

    Attributes:
        model: training form; inputs are the file's, then parameters, then buffers; outputs are the file's, then the
            buffers' next values. A parameter that is not trained has the metadata "ontrain.requires_grad" = "0".
        evaluation: the same inputs and the file's outputs with dropout off and running statistics in use.
        initial: values of parameters and buffers by name.
        trainable: names of the parameters to train.
        frozen: names of the parameters that stay.
        buffers: names of running statistics.
        input_names: what a batch brings, in the file's order.
        output_names: the file's outputs.
        opset: the version of the standard that the file imports.
        name: what messages call the file.
    """

    model: ir.Model
    evaluation: ir.Model
    initial: dict[str, torch.Tensor]
    trainable: list[str]
    frozen: list[str]
    buffers: list[str]
    input_names: list[str]
    output_names: list[str]
    opset: int
    name: str = field(default="the model")


@dataclass
class FiledModel:
    """An ONNX file for inference: dropouts and batch normalisations are in the modes that it says.

    Attributes:
        raw: the file's nodes at ontrain's operator set, functions inlined, nothing inferred. Inputs may be other than
            dense tensors. Weights are inputs behind the file's own.
        initial: values of the weights by name, to be copied and not written: they may lie in the file.
        input_names: what is fed, in the file's order.
        opset: the version of the standard that the file imports.
        name: what messages call the file.
    """

    raw: ir.Model
    initial: dict[str, torch.Tensor]
    input_names: list[str]
    opset: int
    name: str

    def typed(self) -> ir.Model:
        """Return the graph with the type of every value.

        Raises:
            GraphError: an input is no dense tensor, or a type cannot be inferred before sizes are there.
        """
        for value in self.raw.graph.inputs:
            _check_dense(value)
        return _rebuilt(self.raw, self.name)


def load_filed(source: onnx.ModelProto, *, foreign: bool = False) -> FiledModel:
    """Load an ONNX model of any operator set as it stands; see `load_onnx` for what is refused.

    Args:
        source: a message that `read_proto` gave, with its external data.
        foreign: whether operators of other domains may be ones that ontrain does not know.

    Raises:
        GraphError: it is damaged, or holds an operator that ontrain does not know; names the node.
    """
    model, name, opset = _prepared(source, "the model", None, foreign=foreign, trains=False)
    mark_derivatives(model.graph)
    input_names = [value.name or "" for value in model.graph.inputs]
    choice = choose(model.graph, None, ())
    initial = _make_state(model.graph, choice, copies=False)
    _own_mapped(model.graph)
    as_filed(model.graph)
    settle_constants(model.graph)
    check_loops(model)
    return FiledModel(model, initial, input_names, opset, name)


def load_onnx(
    source: Source | ir.Model,
    *,
    trainable: Sequence[str] | None = None,
    frozen: Sequence[str] = (),
    shapes: Mapping[str, Sequence[int | str]] | None = None,
) -> OnnxModel:
    """Load an ONNX model of any operator set and make the initializers chosen its parameters.

    Model-local functions are inlined, older operator sets converted, external data read from the model's folder. The
    file is taken for hostile: nothing in it makes this function run code, leave the folder, or allocate more than the
    file holds.

    Args:
        source: a path, the file's bytes, an `onnx.ModelProto`, or an `onnx_ir.Model`; none is changed.
        trainable: names or patterns of initializers to train ("encoder.*.weight", "re:layer\\\\.[0-3]\\\\..*"). By
            default every floating-point initializer of at least one dimension that an operator reads as data; scales,
            ratios, bounds and the statistics of batch normalisations are none.
        frozen: names or patterns to take out of these. A batch normalisation whose statistics are frozen stays in
            inference form.
        shapes: shapes of inputs by name, where the file has none or is to vary in more dimensions (strings).

    Raises:
        InputError: there is no such file.
        GraphError: it is no ONNX model, is damaged, or holds what ontrain cannot train; names the node.
        OptionError: a name or pattern fits no initializer, or an initializer is no float.
    """
    proto, name = read_proto(ir.to_proto(source) if isinstance(source, ir.Model) else source)
    model, name, opset = _prepared(proto, name, shapes or {})
    graph = model.graph
    numbers_only(graph)
    input_names = [value.name or "" for value in graph.inputs]
    output_names = [value.name or "" for value in graph.outputs]
    if len(set(output_names)) < len(output_names):
        raise GraphError(f"{name} lists an output twice", way_out="give each output a name of its own")
    choice = choose(graph, trainable, frozen)
    initial = _make_state(graph, choice)
    to_training(graph, choice.frozen_statistics)
    training = _rebuilt(model, name)
    to_inference(graph)
    evaluation = _rebuilt(model, name)
    return OnnxModel(
        training, evaluation, initial, list(choice.trained), list(choice.frozen), list(choice.statistics),
        input_names, output_names, opset, name,
    )  # fmt: skip


def _prepared(
    proto: onnx.ModelProto, name: str, shapes: Mapping[str, Sequence[int | str]] | None, *, foreign: bool = False,
    trains: bool = True,
) -> tuple[ir.Model, str, int]:  # fmt: skip
    """The file's graph at ontrain's operator set, what messages call it, and the operator set that it imports.

    With shapes, which may be none, its inputs have to be tensors of shapes that are known.
    """
    proto = in_order(proto)
    check_proto(proto, name)
    model = _deserialised(proto, name)
    _map_left(proto, model.graph, name)
    graph = model.graph
    tops: list[ir.Graph | ir.Function] = [graph, *model.functions.values()]
    for top in tops:
        _unhide(top, [], itertools.count(1))
    _own_metadata(model, name)
    _prepare_inputs(graph, shapes)
    inline_functions(model)
    upgrade(model, foreign=foreign, trains=trains)
    number_labels(graph)
    _lift_initializers(graph)
    _see_through_copies(graph)
    if trains:
        take_sequences_apart(graph)
    return model, name, imports_of(proto.opset_import).get("", OPSET)


def _deserialised(proto: onnx.ModelProto, name: str) -> ir.Model:
    if any(_is_of_maps(value.type) for value in _described(proto.graph)):
        proto = _without_maps(proto)
    try:
        model = ir.from_proto(proto)
        _import(model.opset_imports, imports_of(proto.opset_import))
        for function in proto.functions:
            own = model.functions[function.domain, function.name, function.overload]
            _import(own.opset_imports, imports_of(function.opset_import, implied=False))
        return model
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError, OverflowError) as error:
        cause = error.__cause__ or error
        raise GraphError(f"{name} is no valid ONNX model", reason=f"{type(cause).__name__}: {cause}") from error


def _import(imports: dict[str, int], versions: Mapping[str, int]) -> None:
    imports.clear()
    imports.update(versions)


def _without_maps(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model without types of maps, which onnx_ir lacks."""
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    for value in _described(model.graph):
        if _is_of_maps(value.type):
            value.ClearField("type")
    return model


def _described(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    return [*graph.input, *graph.output, *graph.value_info]


def _is_of_maps(kind: onnx.TypeProto) -> bool:
    if kind.HasField("sequence_type"):
        return _is_of_maps(kind.sequence_type.elem_type)
    return bool(kind.HasField("map_type"))


def _rebuilt(model: ir.Model, name: str) -> ir.Model:
    copy = rebuild(model)
    copy.graph.name = "captured"
    verify(copy, after=f"loading {name}")
    check_loops(copy)
    return copy


def _unhide(graph: ir.Graph | ir.Function, outer: list[set[str]], numbers: Iterator[int]) -> None:
    """Give names of their own to inputs of bodies that hide an outer value: what is moved inwards would meet them."""
    names = {value.name or "" for node in graph for value in node.outputs} | {v.name or "" for v in graph.inputs}
    scopes = [*outer, names | set(graph.initializers if isinstance(graph, ir.Graph) else ())]
    for node in graph:
        for inner in subgraphs(node):
            for value in inner.inputs:
                name = value.name or ""
                while any(value.name in scope for scope in scopes):
                    value.name = f"{name}_{next(numbers)}"
            _unhide(inner, scopes, numbers)


def _own_metadata(model: ir.Model, name: str) -> None:
    """Nothing in the file speaks to ontrain; what names the line of the user's model, or else the node, is kept."""
    graphs: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    for top in graphs:
        for value in (*top.inputs, *top.outputs):
            value.metadata_props.clear()
        for node in every_node(top):
            trace = node.metadata_props.get(_STACK_TRACE, "").strip().splitlines()
            node.metadata_props.clear()
            for value in node.outputs:
                value.metadata_props.clear()
            line = " ".join(part.strip() for part in trace[-2:])
            annotate(node, line or f"{name}: node {node.name or node.op_type!r}", None, node.name)
    for value in model.graph.initializers.values():
        value.metadata_props.clear()


def _prepare_inputs(graph: ir.Graph, shapes: Mapping[str, Sequence[int | str]] | None) -> None:
    """Give every input a shape and, if shapes are named, a dtype; an initializer that is an input too is none."""
    for value in list(graph.inputs):
        if value.name in graph.initializers:
            graph.inputs.remove(value)
    names = [value.name or "" for value in graph.inputs]
    for wanted in shapes or ():
        if wanted not in names:
            raise OptionError(f"the model has no input {wanted!r}", way_out=f"nearest: {nearest(wanted, names)}")
    for value in graph.inputs:
        name = value.name or ""
        if shapes is not None and name in shapes:
            value.shape = _given_shape(value, shapes[name])
        if shapes is not None:
            _check_dense(value)
        if value.shape is not None:
            dims = [_size(d) or f"{name}_dim{i}" if d != 0 else 0 for i, d in enumerate(value.shape)]
            value.shape = ir.Shape(dims)
        set_role(value, Role.INPUT)


def _size(dim: int | ir.SymbolicDim) -> int | str | None:
    """A size or its name; some exporters write -1 or "?" for any size."""
    if isinstance(dim, int):
        return dim if dim >= 0 else None
    return None if dim.value == "?" else dim.value


def _check_dense(value: ir.Value) -> None:
    """Refuse an input that is no tensor of a known shape."""
    if not isinstance(value.type, ir.TensorType) or value.dtype in (None, ir.DataType.UNDEFINED):
        raise GraphError(
            f"input {value.name!r} is of type {value.type}",
            reason="a batch consists of dense tensors",
            way_out="export the model with tensor inputs",
        )
    if value.shape is None:
        raise GraphError(
            f"input {value.name!r} has no shape",
            way_out="export the model with it, names in place of sizes that vary; load_onnx takes it as shapes={…}, "
            "ORTTrainer from model_desc",
        )


def _given_shape(value: ir.Value, shape: Sequence[int | str]) -> ir.Shape:
    if value.shape is not None:
        stated = [d if isinstance(d, int) else None for d in value.shape]
        wrong = len(stated) != len(shape) or any(
            isinstance(g, int) and s is not None and g != s for g, s in zip(shape, stated, strict=True)
        )
        if wrong:
            wanted = [d if isinstance(d, int) else d.value for d in value.shape]
            raise OptionError(
                f"input {value.name!r} is described with the shape {list(shape)}, the file says {wanted}",
                way_out="use the file's, or strings for dimensions that vary",
            )
    return ir.Shape(shape)


def _lift_initializers(graph: ir.Graph) -> None:
    """Move the initializers of branches and bodies to the main graph, where they can be chosen and trained.

    In the graphs of other operators, which are read by onnx alone, they become constants.
    """
    for node in list(every_node(graph)):
        inner = [attr.value for attr in node.attributes.values() if attr.type == ir.AttributeType.GRAPH]
        for other in inner:
            _lift(other, graph) if holds_programs(node) else _spell_out(other)


def _lift(inner: ir.Graph, graph: ir.Graph) -> None:
    for name in list(inner.initializers):
        _give_a_copy(inner, inner.initializers[name])
        value = inner.initializers.pop(name)
        fresh, n = name, 0
        while fresh in graph.initializers:
            n += 1
            fresh = f"{name}_{n}"
        value.name = fresh
        graph.register_initializer(value)


def _give_a_copy(inner: ir.Graph, value: ir.Value) -> None:
    """Let a graph that gives its own initializer give a copy of it: what it gives must be made in it."""
    if not value.is_graph_output():
        return
    copy = ir.node("Identity", [value], outputs=[ir.Value(type=value.type, shape=value.shape)])
    inner.append(copy)
    for at, output in enumerate(inner.outputs):
        if output is value:
            inner.outputs[at] = copy.outputs[0]


def _see_through_copies(graph: ir.Graph) -> None:
    """Take Identity nodes of initializers away, which exporters write for equal ones.

    What an initializer is for shows in who reads it: scales of a Resize behind an Identity are scales.
    """
    for node in list(every_node(graph)):
        if node.op_type != "Identity" or node.domain or not isinstance(node.graph, ir.Graph):
            continue
        source, copy = node.inputs[0], node.outputs[0]
        if source is not None and source.is_initializer() and not copy.is_graph_output():
            copy.replace_all_uses_with(source)
            node.graph.remove(node, safe=True)


def _spell_out(inner: ir.Graph) -> None:
    for name in list(inner.initializers):
        _give_a_copy(inner, inner.initializers[name])
        value = inner.initializers.pop(name)
        assert value.const_value is not None
        constant = ir.node("Constant", [], {"value": value.const_value}, outputs=[ir.Value(name=name)])
        value.name = None
        value.replace_all_uses_with(constant.outputs[0])
        if len(inner):
            inner.insert_before(inner[0], constant)


def _map_left(proto: onnx.ModelProto, graph: ir.Graph, name: str) -> None:
    """Give initializers the values that were left in their files, mapped into memory."""
    for tensor in proto.graph.initializer:
        left = left_data(tensor)
        value = None if left is None else graph.initializers.get(tensor.name)
        if left is None or value is None:
            continue
        try:
            dtype = ir.DataType(tensor.data_type)
            value.const_value = ir.Tensor(left.array(dtype.numpy(), tensor.dims), dtype, name=tensor.name)
        except (OSError, ValueError) as error:
            raise GraphError(f"the data of {tensor.name!r} in {name} cannot be read", reason=str(error)) from error


def _own_mapped(graph: ir.Graph) -> None:
    """Copy what is mapped from a file and stays: others may change the file."""
    for value in graph.initializers.values():
        tensor = value.const_value
        if isinstance(tensor, ir.Tensor) and isinstance(tensor.raw, np.memmap):
            value.const_value = ir.Tensor(np.array(tensor.raw), tensor.dtype, name=tensor.name)


def _make_state(graph: ir.Graph, choice: Choice, *, copies: bool = True) -> dict[str, torch.Tensor]:
    """Turn the initializers chosen into inputs with a role; return their values, as copies if these may be written."""
    initial: dict[str, torch.Tensor] = {}
    for names, role in (((*choice.trained, *choice.frozen), Role.PARAMETER), (choice.statistics, Role.BUFFER)):
        for name in names:
            value = graph.initializers.pop(name)
            assert value.const_value is not None
            array = value.const_value.numpy()
            initial[name] = to_tensor(np.array(array) if copies else array)  # the file's bytes are read-only
            value.type, value.shape = ir.TensorType(value.const_value.dtype), ir.Shape(value.const_value.shape.numpy())
            value.const_value = None
            if name in choice.frozen:
                value.metadata_props[REQUIRES_GRAD] = "0"
            graph.inputs.append(set_role(value, role))
    return initial
