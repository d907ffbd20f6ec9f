"""Models for runs that ask for more: inner values as outputs, initializers as inputs, sizes that the file calls one."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from ontrain.errors import InputError, nearest

if TYPE_CHECKING:
    import onnx

__all__ = ["exposed", "inner_names", "overridable", "told_apart"]


def inner_names(proto: onnx.ModelProto) -> set[str]:
    """Return the names of what the nodes of the main graph compute, and of its initializers."""
    names = {name for node in proto.graph.node for name in node.output if name}
    return names | {tensor.name for tensor in proto.graph.initializer}


_WITH_DEFAULTS = 4
"""The first version of files in which an initializer need not be an input."""


def overridable(proto: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """Return the inputs that have initializers, which are fed where another value is wanted.

    Files of ONNX's first three versions list every initializer among the inputs; these are constants.
    """
    if proto.ir_version < _WITH_DEFAULTS:
        return []
    initial = {tensor.name for tensor in proto.graph.initializer}
    initial |= {tensor.values.name for tensor in proto.graph.sparse_initializer}
    return [value for value in proto.graph.input if value.name in initial]


def exposed(proto: onnx.ModelProto, outputs: Collection[str], inputs: Collection[str] = ()) -> onnx.ModelProto:
    """Return a model with further outputs and inputs.

    Args:
        proto: stays as it is.
        outputs: names of inner values.
        inputs: names of overridable initializers, which have to be fed afterwards.

    Raises:
        InputError: the model has no value of such a name.
    """
    import onnx

    model = onnx.ModelProto()
    model.CopyFrom(proto)
    inner = inner_names(proto)
    types = {value.name: value for value in proto.graph.value_info}
    for name in outputs:
        if name not in inner:
            raise InputError(f"the model has no value {name!r}", way_out=f"nearest: {nearest(name, inner)}")
        model.graph.output.append(types.get(name, onnx.ValueInfoProto(name=name)))
    initial = [tensor for tensor in model.graph.initializer if tensor.name not in inputs]
    del model.graph.initializer[:]
    model.graph.initializer.extend(initial)
    return model


def told_apart(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model in which each size of each input has a name of its own.

    Exporters give one name to sizes that have nothing to do with each other, such as `N` to all that vary.

    Args:
        proto: stays as it is.
    """
    import onnx

    model = onnx.ModelProto()
    model.CopyFrom(proto)
    for value in model.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.HasField("dim_param"):
                dim.dim_param = f"{value.name}:{axis}"
    _forget_names(model.graph)
    return model


def without_scalars(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose inputs without sizes have any, as onnxruntime takes them.

    Args:
        proto: stays as it is.
    """
    import onnx

    model = onnx.ModelProto()
    model.CopyFrom(proto)
    for value in model.graph.input:
        if not value.type.tensor_type.shape.dim:
            value.type.tensor_type.ClearField("shape")
    del model.graph.value_info[:]
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    return model


def _forget_names(graph: onnx.GraphProto) -> None:
    """Take away the names of sizes of all values but the inputs of the main graph."""
    inner = [attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g")]
    for value in (*graph.value_info, *graph.output, *(value for body in inner for value in body.input)):
        for dim in value.type.tensor_type.shape.dim:
            dim.ClearField("dim_param")
    for body in inner:
        _forget_names(body)
