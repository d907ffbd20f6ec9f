"""The nodes that guards are made of, as each operator set writes them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

__all__ = ["KIND", "LARGEST", "SLICES_FED", "GuardNodes", "scalar"]

KIND = onnx.TensorProto
_AXES_FED = 13
"""The operator set from which on axes of an Unsqueeze are an operand."""
SLICES_FED = 10
"""The operator set from which on the ends of a Slice are operands."""
LARGEST = 2**31 - 1
"""An end behind every size, and the largest version that onnx's own look-up takes."""


class GuardNodes:
    """Appends nodes to those of a graph; all graphs of a model number their values together.

    Attributes:
        opset: the version of the standard's operators.
        nodes: what was appended, and whatever else the graph has before it.
    """

    def __init__(self, opset: int, numbers: Iterator[int] | None = None) -> None:
        self.opset, self.nodes = opset, list[onnx.NodeProto]()
        self._numbers = itertools.count(1) if numbers is None else numbers

    def of_another_graph(self) -> GuardNodes:
        """Return the same for another graph of the model, without nodes."""
        return GuardNodes(self.opset, self._numbers)

    def name(self) -> str:
        """Return a name that no value has yet."""
        return f"ontrain/guard/{next(self._numbers)}"

    def emit(self, op_type: str, inputs: list[str], called: str = "", **attributes: int) -> str:
        """Append a node with one result; return the result's name."""
        name = self.name()
        node = onnx.NodeProto(op_type=op_type, name=called or name, input=inputs, output=[name])
        for key, value in attributes.items():
            node.attribute.add(name=key, type=onnx.AttributeProto.INT, i=value)
        self.nodes.append(node)
        return name

    def constant(self, array: np.ndarray[Any, Any], kind: int) -> str:
        """Append a constant of this element type."""
        name = self.name()
        dtype = numpy_helper.to_array(onnx.TensorProto(data_type=kind, dims=[0])).dtype
        node = onnx.NodeProto(op_type="Constant", name=name, output=[name])
        held = node.attribute.add(name="value", type=onnx.AttributeProto.TENSOR)
        held.t.CopyFrom(numpy_helper.from_array(array.astype(dtype), name))
        self.nodes.append(node)
        return name

    def sizes(self, *sizes: int) -> str:
        """Append a shape."""
        return self.constant(np.array(sizes), KIND.INT64)

    def row(self, value: str) -> str:
        """The value as the one entry along a new first axis. To a Reshape, a size of 0 would mean another size."""
        return (
            self._with_integers("Unsqueeze", value, axes=0)
            if self.opset < _AXES_FED
            else self.emit("Unsqueeze", [value, self.sizes(0)])
        )

    def flat(self, value: str) -> str:
        """The value along one axis."""
        return self.emit("Reshape", [value, self.sizes(-1)])

    def since(self, sizes: str, axis: int) -> str:
        """The sizes from an axis on."""
        if self.opset < SLICES_FED:
            return self._with_integers("Slice", sizes, starts=axis, ends=LARGEST)
        return self.emit("Slice", [sizes, self.sizes(axis), self.sizes(LARGEST)])

    def unless(self, value: str, met: str, called: str) -> str:
        """The same value, behind a node of this name that fails where one of `met` is not true."""
        wrong = self.flat(self.emit("Cast", [self.emit("Not", [met])], to=KIND.INT32))
        index = self.emit("Cast", [self.emit("ReduceMax", [wrong], keepdims=0)], to=KIND.INT64)
        return self.emit("Gather", [self.row(value), index], called=called)

    def _with_integers(self, op_type: str, value: str, **attributes: int) -> str:
        """Append a node whose settings are attributes of one integer each."""
        name = self.emit(op_type, [value])
        for key, number in attributes.items():
            self.nodes[-1].attribute.add(name=key, type=onnx.AttributeProto.INTS, ints=[number])
        return name


def scalar(name: str, kind: int) -> onnx.ValueInfoProto:
    """Return the description of a number that a graph takes or gives."""
    info = onnx.ValueInfoProto(name=name)
    info.type.tensor_type.elem_type = kind
    info.type.tensor_type.shape.SetInParent()
    return info
