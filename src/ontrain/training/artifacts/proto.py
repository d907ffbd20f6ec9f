"""Graphs as messages to be shipped: without notes on the machine that made them."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from ontrain.graph import all_nodes
from ontrain.session import check_written

__all__ = ["to_proto"]


def to_proto(model: ir.Model) -> onnx.ModelProto:
    """Return the message of a plain graph; source lines, roles and other notes stay behind."""
    for node in all_nodes(model.graph):
        node.metadata_props.clear()
    for value in (*model.graph.inputs, *model.graph.outputs, *model.graph.initializers.values()):
        value.metadata_props.clear()
    proto: onnx.ModelProto = ir.to_proto(model)
    del proto.graph.value_info[:]
    check_written(proto)
    return proto
