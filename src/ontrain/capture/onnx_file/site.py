"""A node of an older operator set while it is converted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.errors import GraphError
from ontrain.graph import OPSET, describe, source_of, take_shape

__all__ = ["Site"]


class Site:
    """A node under conversion: its attributes as plain values, and nodes put before or in place of it."""

    def __init__(self, node: ir.Node, graph: ir.Graph, *, trains: bool) -> None:
        self.node, self.graph, self.trains = node, graph, trains

    def has(self, index: int) -> bool:
        """Whether the input at `index` is given."""
        return index < len(self.node.inputs) and self.node.inputs[index] is not None

    def take(self, name: str, default: Any = None) -> Any:
        """Remove an attribute and return its value."""
        attr = self.node.attributes.pop(name, None)
        return default if attr is None else attr.value

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute's value."""
        attr = self.node.attributes.get(name)
        return default if attr is None else attr.value

    def set(self, name: str, value: Any) -> None:
        """Give the node an attribute."""
        self.node.attributes.add(ir.convenience.convert_attribute(name, value))

    def const(self, value: Any, dtype: Any = np.int64) -> ir.Value:
        """Return a constant made before the node."""
        return self.emit("Constant", value=ir.tensor(np.asarray(value, dtype)))

    def emit(self, op_type: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        """Return the output of a new node, which goes before this one."""
        return self.emit_several(op_type, *inputs, count=1, **attributes)[0]

    def emit_several(self, op_type: str, *inputs: ir.Value | None, count: int, **attributes: Any) -> Sequence[ir.Value]:
        """Return the outputs of a new node, which goes before this one."""
        node = ir.node(op_type, inputs, attributes, num_outputs=count)
        node.version = OPSET
        node.metadata_props.update(self.node.metadata_props)
        self.graph.insert_before(self.node, node)
        return node.outputs

    def reshaped(self, value: ir.Value | None, like: ir.Value | None) -> ir.Value:
        """Return a value in the shape of another one, whose sizes it has by name."""
        return take_shape(self.emit("Reshape", value, self.emit("Shape", like)))

    def inputs(self, *values: ir.Value | None) -> None:
        """Give the node other inputs."""
        operands = list(values)
        while operands and operands[-1] is None:
            operands.pop()
        self.node.resize_inputs(len(operands))
        for i, value in enumerate(operands):
            self.node.replace_input_with(i, value)

    def input(self, index: int) -> ir.Value | None:
        """Return an input, None if it is left out."""
        return self.node.inputs[index] if index < len(self.node.inputs) else None

    def replace(self, value: ir.Value) -> None:
        """Let `value` take the place of the node's first output; the node goes."""
        old = self.node.outputs[0]
        value.name = old.name
        ir.convenience.replace_all_uses_with([old], [value], replace_graph_outputs=True)
        self.graph.remove(self.node, safe=False)

    def refuse(self, problem: str, way_out: str | None = None) -> GraphError:
        """Return the error for something that has no form today."""
        return GraphError(
            problem,
            node=describe(self.node),
            source=source_of(self.node),
            reason=f"its operator set is version {self.node.version}, ontrain's is {OPSET}",
            way_out=way_out,
        )
