"""Files of a few nodes, and numbers at the end of their range."""

from __future__ import annotations

from onnx import TensorProto, helper

INT64, LEAST = TensorProto.INT64, -(2**63)


def file(nodes, inputs, outputs, stored=(), opset=17) -> bytes:
    graph = helper.make_graph(list(nodes), "g", inputs, outputs, list(stored))
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return proto.SerializeToString()
