"""`load_onnx`: an ONNX file and a choice of its initializers become a graph to train."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import to_torch_dtype

from ontrain.capture.names import REQUIRES_GRAD
from ontrain.capture.onnx_file.checks import check_proto
from ontrain.capture.onnx_file.choose import Choice, choose
from ontrain.capture.onnx_file.functions import inline_functions
from ontrain.capture.onnx_file.loops import check_loops
from ontrain.capture.onnx_file.modes import as_filed, to_inference, to_training
from ontrain.capture.onnx_file.read import Source, read_proto
from ontrain.capture.onnx_file.upgrade import upgrade
from ontrain.errors import GraphError, OptionError, nearest
from ontrain.graph import Role, annotate, rebuild, set_role, verify

__all__ = ["OnnxModel", "load_onnx"]

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
    name: str = field(default="the model")


def load_onnx(
    source: Source | ir.Model,
    *,
    trainable: Sequence[str] | None = None,
    frozen: Sequence[str] = (),
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    training_mode: bool = True,
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
        training_mode: put dropouts and batch normalisations into training form, as exporters write them in inference
            form; False leaves each as it is in the file, and gives no buffer a next value: `model` is then the file for
            inference.

    Raises:
        InputError: there is no such file.
        GraphError: it is no ONNX model, is damaged, or holds what ontrain cannot train; names the node.
        OptionError: a name or pattern fits no initializer, or an initializer is no float.
    """
    proto, name = read_proto(ir.to_proto(source) if isinstance(source, ir.Model) else source)
    check_proto(proto, name)
    model = _deserialised(proto, name)
    graph = model.graph
    _own_metadata(model, name)
    _prepare_inputs(graph, shapes or {})
    inline_functions(model)
    upgrade(model)
    _lift_initializers(graph)
    input_names = [value.name or "" for value in graph.inputs]
    output_names = [value.name or "" for value in graph.outputs]
    choice = choose(graph, trainable, frozen)
    initial = _make_state(graph, choice)
    if training_mode:
        to_training(graph, choice.frozen_statistics)
    else:
        as_filed(graph)
    training = _rebuilt(model, name)
    to_inference(graph)
    evaluation = _rebuilt(model, name)
    return OnnxModel(
        training, evaluation, initial, list(choice.trained), list(choice.kept), list(choice.statistics),
        input_names, output_names, name,
    )  # fmt: skip


def _deserialised(proto: onnx.ModelProto, name: str) -> ir.Model:
    try:
        return ir.from_proto(proto)
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError, OverflowError) as error:
        cause = error.__cause__ or error
        raise GraphError(f"{name} is no valid ONNX model", reason=f"{type(cause).__name__}: {cause}") from error


def _rebuilt(model: ir.Model, name: str) -> ir.Model:
    made = rebuild(model)
    made.graph.name = "captured"
    verify(made, after=f"loading {name}")
    check_loops(made)
    return made


def _own_metadata(model: ir.Model, name: str) -> None:
    """Nothing in the file speaks to ontrain; what names the line of the user's model, or else the node, is kept."""
    graphs: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    for top in graphs:
        for value in (*top.inputs, *top.outputs):
            value.metadata_props.clear()
        for node in ir.traversal.RecursiveGraphIterator(top):
            trace = node.metadata_props.get(_STACK_TRACE, "").strip().splitlines()
            node.metadata_props.clear()
            for value in node.outputs:
                value.metadata_props.clear()
            line = " ".join(part.strip() for part in trace[-2:])
            annotate(node, line or f"{name}: node {node.name or node.op_type!r}", None)
    for value in model.graph.initializers.values():
        value.metadata_props.clear()


def _prepare_inputs(graph: ir.Graph, shapes: Mapping[str, Sequence[int | str]]) -> None:
    """Give every input a dtype and a shape; an initializer that is listed as an input too is none."""
    for value in list(graph.inputs):
        if value.name in graph.initializers:
            graph.inputs.remove(value)
    names = [value.name or "" for value in graph.inputs]
    for given in shapes:
        if given not in names:
            raise OptionError(f"the model has no input {given!r}", way_out=f"nearest: {nearest(given, names)}")
    for value in graph.inputs:
        name = value.name or ""
        if not isinstance(value.type, ir.TensorType) or value.dtype in (None, ir.DataType.UNDEFINED):
            raise GraphError(
                f"input {name!r} is of type {value.type}",
                reason="a batch consists of dense tensors",
                way_out="export the model with tensor inputs",
            )
        if name in shapes:
            value.shape = _given_shape(value, shapes[name])
        if value.shape is None:
            raise GraphError(
                f"input {name!r} has no shape", way_out="give one: shapes={…}, or the model_desc of ORTTrainer"
            )
        dims = [d if isinstance(d, int) else d.value or f"{name}_dim{i}" for i, d in enumerate(value.shape)]
        value.shape = ir.Shape(dims)
        set_role(value, Role.INPUT)


def _given_shape(value: ir.Value, given: Sequence[int | str]) -> ir.Shape:
    if value.shape is not None:
        stated = [d if isinstance(d, int) else None for d in value.shape]
        wrong = len(stated) != len(given) or any(
            isinstance(g, int) and s is not None and g != s for g, s in zip(given, stated, strict=True)
        )
        if wrong:
            wanted = [d if isinstance(d, int) else d.value for d in value.shape]
            raise OptionError(
                f"input {value.name!r} is described with the shape {list(given)}, the file says {wanted}",
                way_out="use the file's, or strings for dimensions that vary",
            )
    return ir.Shape(given)


def _lift_initializers(graph: ir.Graph) -> None:
    """Move the initializers of branches and bodies to the main graph, where they can be chosen and trained."""
    inner = {node.graph for node in ir.traversal.RecursiveGraphIterator(graph)} - {graph}
    for one in inner:
        if not isinstance(one, ir.Graph):
            continue
        for name in list(one.initializers):
            value = one.initializers.pop(name)
            fresh, n = name, 0
            while fresh in graph.initializers:
                n += 1
                fresh = f"{name}_{n}"
            value.name = fresh
            graph.register_initializer(value)


def _make_state(graph: ir.Graph, choice: Choice) -> dict[str, torch.Tensor]:
    """Turn the initializers chosen into inputs with a role; return their values."""
    initial: dict[str, torch.Tensor] = {}
    for names, role in (((*choice.trained, *choice.kept), Role.PARAMETER), (choice.statistics, Role.BUFFER)):
        for name in names:
            value = graph.initializers.pop(name)
            assert value.const_value is not None
            initial[name] = _tensor(value.const_value)
            value.type, value.shape = ir.TensorType(value.const_value.dtype), ir.Shape(value.const_value.shape.numpy())
            value.const_value = None
            if name in choice.kept:
                value.metadata_props[REQUIRES_GRAD] = "0"
            graph.inputs.append(set_role(value, role))
    return initial


def _tensor(stored: ir.TensorProtocol) -> torch.Tensor:
    dtype = to_torch_dtype(stored.dtype)
    array = np.array(stored.numpy())  # a copy: the file's bytes are read-only
    if array.dtype.kind == "V" or stored.dtype == ir.DataType.BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(dtype)
    return torch.from_numpy(array)
