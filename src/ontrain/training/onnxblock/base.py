"""The model that blocks are stacked on, and how a block adds to it."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from ontrain.arguments import checked_kind, checked_path, checked_whole, told
from ontrain.capture import load_onnx
from ontrain.errors import GraphError, InputError, OptionError, nearest
from ontrain.files import with_shapes
from ontrain.graph import OPSET, output_shapes, settled

__all__ = ["ModelAccessor", "base", "current", "custom_op_library", "empty_base"]


class ModelAccessor:
    """Holds the model that blocks build on.

    Args:
        model: changed by every block.
        model_path: where it was read; None if it was not, or nobody said.
    """

    def __init__(self, model: onnx.ModelProto, model_path: str | None = None) -> None:
        self.model, self._path = model, model_path

    @property
    def has_path(self) -> bool:
        """Whether the model's file is known."""
        return self._path is not None

    @property
    def path(self) -> str:
        """Path of the model's file.

        Raises:
            InputError: it is not known.
        """
        if self._path is None:
            raise InputError("the model's path is not known", way_out="give onnxblock.base a model_path")
        return self._path

    def node(
        self, op_type: str, inputs: Sequence[str], *, wish: str | None = None, domain: str = "", **attributes: Any
    ) -> str:
        """Append a node with one output and return the output's name, `wish` with a number if that is taken."""
        self._check_opset(op_type, domain)
        for declared in inputs:
            if not isinstance(declared, str) or declared:  # an optional input may be left out
                self.check(declared)
        name = self.fresh(wish or f"{op_type.lower()}_output")
        attrs = [ir.to_proto(ir.convenience.convert_attribute(key, value)) for key, value in attributes.items()]
        self.model.graph.node.append(
            onnx.NodeProto(op_type=op_type, name=name, input=inputs, output=[name], attribute=attrs, domain=domain)
        )
        return name

    def _check_opset(self, op_type: str, domain: str) -> None:
        """Raise GraphError where the model imports an operator set from before the operator."""
        versions = [entry.version for entry in self.model.opset_import if entry.domain in ("", "ai.onnx")]
        if domain or not versions or onnx.defs.has(op_type, max_inclusive_version=max(versions)):
            return
        if onnx.defs.has(op_type):
            since = min(s.since_version for s in onnx.defs.get_all_schemas_with_history() if s.name == op_type)
            raise GraphError(
                f"{op_type} came with operator set {since}, the model is of {max(versions)}",
                reason="what a block adds belongs to the operator set that its model imports",
                way_out=f"export the model at opset {since} or later, or convert it with "
                f"onnx.version_converter.convert_version(model, {since})",
            )

    def each(self, sequence: str, op_type: str, *operands: str, **attributes: Any) -> str:
        """Append an operator on each tensor of a sequence; return the name of the sequence of results."""
        attrs = [ir.to_proto(ir.convenience.convert_attribute(key, value)) for key, value in attributes.items()]
        element = onnx.ValueInfoProto(name=self.fresh("element"))
        element.type.tensor_type.elem_type = self._sequence(sequence).tensor_type.elem_type
        result = copy.deepcopy(element)
        result.name = self.fresh("mapped")
        inputs = [element.name, *operands]
        node = onnx.NodeProto(op_type=op_type, input=inputs, output=[result.name], attribute=attrs)
        body = onnx.GraphProto(name=op_type.lower(), node=[node], input=[element], output=[result])
        name = self.node("SequenceMap", [sequence])
        self.model.graph.node[-1].attribute.add(name="body", type=onnx.AttributeProto.GRAPH, g=body)
        value = self.model.graph.value_info.add(name=name)
        value.type.sequence_type.elem_type.CopyFrom(self._sequence(sequence))
        return name

    def is_sequence(self, name: str) -> bool:
        """Whether the model says that a value is a sequence of tensors."""
        return isinstance(name, str) and self._stated(name) is not None

    def _sequence(self, name: str) -> onnx.TypeProto:
        """The type of a sequence's tensors."""
        stated = self._stated(name)
        assert stated is not None, "is_sequence was asked first"
        return stated

    def _stated(self, name: str) -> onnx.TypeProto | None:
        graph = self.model.graph
        for value in (*graph.input, *graph.value_info, *graph.output):
            if value.name == name and value.type.HasField("sequence_type"):
                element: onnx.TypeProto = value.type.sequence_type.elem_type
                return element
        return None

    def constant(self, array: np.ndarray[Any, Any], wish: str) -> str:
        """Append a number or table that a block computes with and return its name; no training changes it."""
        return self.node("Constant", [], wish=wish, value=ir.tensor(array))

    def initializer(self, array: np.ndarray[Any, Any], wish: str) -> str:
        """Append an initializer, a weight that may be trained, and return its name."""
        name = self.fresh(wish)
        self.model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
        return name

    def input_like(self, like: str, name: str, *, without: int | None = None, dtype: int | None = None) -> str:
        """Append an input shaped like a value.

        Args:
            like: the value.
            name: of the input, numbered if it is taken.
            without: an axis to leave out.
            dtype: of the input, by onnx's number; None for that of the value.

        """
        dims = self._dims(like)
        info = onnx.ValueInfoProto(name=self.fresh(checked_kind("the name of an input", name, str, "give a text")))
        info.type.tensor_type.elem_type = self.find(like).type.tensor_type.elem_type if dtype is None else dtype
        shape = info.type.tensor_type.shape
        shape.SetInParent()
        for axis, dim in enumerate(dims):
            if axis == without:
                continue
            if isinstance(dim, int):
                shape.dim.add().dim_value = dim
            else:
                shape.dim.add().dim_param = dim or f"{info.name}_dim{axis}"
        self.model.graph.input.append(info)
        return info.name

    def find(self, name: str) -> onnx.ValueInfoProto:
        """Return name, dtype and shape of a value.

        Raises:
            OptionError: the model has no such value.
            GraphError: its rank is not known.
        """
        self.check(name)
        for model in (self.model, None):
            inferred = _inferred(self.model) if model is None else model
            graph = inferred.graph
            for value in (*graph.input, *graph.output, *graph.value_info):
                known = value.type.HasField("sequence_type") or value.type.tensor_type.HasField("shape")
                if value.name == name and known:
                    info: onnx.ValueInfoProto = value
                    return info
            for tensor in graph.initializer:
                if tensor.name == name:
                    return _described(tensor)
        raise GraphError(f"the shape of {name!r} is unknown", way_out="state the shapes of the model's outputs")

    def check(self, name: str) -> None:
        """Raise OptionError unless the graph has a value of this name."""
        if not self.exists(name):
            raise OptionError(
                f"the model has no value {name!r}" if isinstance(name, str) else f"{told(name)} is no name of a value",
                way_out=f"nearest: {nearest(name, self._names())}",
            )

    def exists(self, name: str) -> bool:
        """Whether the graph has a value of this name."""
        return isinstance(name, str) and name in self._names()

    def inferred(self) -> onnx.ModelProto:
        """Return a copy of the model with the shapes that onnx can tell.

        Raises:
            GraphError: the model is damaged.
        """
        return _inferred(self.model)

    def fresh(self, wish: str) -> str:
        """Return `wish`, with a number behind it if it is taken."""
        taken, name, n = self._names(), wish, 0
        while name in taken:
            n += 1
            name = f"{wish}_{n}"
        return name

    def set_outputs(self, names: Sequence[str]) -> None:
        """Make these values the graph's outputs, and nothing else.

        Raises:
            OptionError: there is no such value, or none was named.
        """
        if isinstance(names, str | bytes) or not isinstance(names, Sequence) or not names:
            raise OptionError("the block returned no output", way_out="return the name of the loss, or several names")
        values = [copy.deepcopy(self.find(name)) for name in names]
        del self.model.graph.output[:]
        self.model.graph.output.extend(values)

    def _names(self) -> set[str]:
        graph = self.model.graph
        names = {value.name for value in (*graph.input, *graph.initializer)}
        for node in graph.node:
            names.update(node.output)
        return names

    def _dims(self, name: str) -> list[int | str | None]:
        """The shape of a value in numbers and symbols of the inputs, by running shapes through the model if need be."""
        stated = [
            dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None
            for dim in self.find(name).type.tensor_type.shape.dim
        ]
        inputs = {dim.dim_param for value in self.model.graph.input for dim in value.type.tensor_type.shape.dim}
        if all(isinstance(dim, int) or dim in inputs for dim in stated):
            return stated
        part = copy.deepcopy(self.model)
        del part.graph.output[:]
        output = part.graph.output.add(name=name)
        output.type.tensor_type.elem_type = self.find(name).type.tensor_type.elem_type
        return output_shapes(settled(load_onnx(part).evaluation))[name]


_current: ContextVar[ModelAccessor | None] = ContextVar("_current", default=None)


def current() -> ModelAccessor:
    """Return the accessor of the `with` block around.

    Raises:
        InputError: there is none.
    """
    current = _current.get()
    if current is None:
        raise InputError("there is no base model", way_out="call blocks inside `with onnxblock.base(model):`")
    return current


@contextmanager
def base(model: onnx.ModelProto, model_path: str | os.PathLike[str] | None = None) -> Iterator[ModelAccessor]:
    """Let blocks build on a copy of a model; gives its accessor (onnxruntime.training.onnxblock.base).

    Args:
        model: any model.
        model_path: where it was read, for blocks that ask for it.

    Raises:
        InputError: blocks build on another model already, or `model` is none.
    """
    if not isinstance(model, onnx.ModelProto):
        raise InputError(
            f"the base is a {type(model).__name__}", way_out="give an onnx.ModelProto, or use empty_base()"
        )
    path = None if model_path is None else checked_path("model_path", model_path)
    with _entered(copy.deepcopy(model), path) as accessor:
        yield accessor


@contextmanager
def empty_base(opset_version: int | None = None) -> Iterator[ModelAccessor]:
    """Let blocks build on an empty model; gives its accessor (onnxruntime.training.onnxblock.empty_base).

    Raises:
        InputError: blocks build on another model already.
        OptionError: the installed onnx knows no such opset.
    """
    if opset_version is not None:
        checked_whole("opset_version", opset_version, 1, onnx.defs.onnx_opset_version())
    model = onnx.ModelProto(ir_version=10, producer_name="ontrain")
    model.graph.name = "graph"
    model.opset_import.add(domain="", version=opset_version or OPSET)
    with _entered(model) as accessor:
        yield accessor


@contextmanager
def _entered(model: onnx.ModelProto, path: str | None = None) -> Iterator[ModelAccessor]:
    if _current.get() is not None:
        raise InputError("there is a base model already", way_out="leave the `with` block around first")
    accessor = ModelAccessor(model, path)
    token = _current.set(accessor)
    try:
        yield accessor
    finally:
        _current.reset(token)


@contextmanager
def custom_op_library(path: str | bytes | os.PathLike[Any]) -> Iterator[None]:
    """Refuse: a library's operators have neither a type that is known here nor a gradient.

    Raises:
        OptionError: always.
    """
    raise OptionError(
        f"the operators of {checked_path('custom_op_library', path)!r} cannot be trained",
        reason="the graphs are plain ONNX, for every onnxruntime; a library is one platform's, and states no gradients",
        way_out="write the operator as a function of the model, out of standard operators",
    )
    yield


def _inferred(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the shapes that onnx can tell.

    Raises:
        GraphError: the model is damaged.
    """
    try:
        return with_shapes(model)
    except (
        onnx.checker.ValidationError,
        onnx.shape_inference.InferenceError,
        RuntimeError,
        ValueError,
        MemoryError,
    ) as error:
        raise GraphError(
            "the shapes of the model cannot be told", reason=str(error).strip() or type(error).__name__
        ) from error


def _described(tensor: onnx.TensorProto) -> onnx.ValueInfoProto:
    value = onnx.ValueInfoProto(name=tensor.name)
    value.type.tensor_type.elem_type = tensor.data_type
    value.type.tensor_type.shape.SetInParent()
    for size in tensor.dims:
        value.type.tensor_type.shape.dim.add().dim_value = size
    return value
