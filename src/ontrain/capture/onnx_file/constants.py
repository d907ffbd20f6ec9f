"""Constant nodes as values that are known."""

from __future__ import annotations

import onnx_ir as ir

from ontrain.graph import all_nodes, evaluate
from ontrain.operators import holds_programs

__all__ = ["settle_constants"]


def settle_constants(graph: ir.Graph) -> None:
    """Replace each Constant node, those of branches and bodies too, by a value without a producer, in place."""
    nodes = list(all_nodes(graph))
    closed = {
        attr.value for node in nodes for attr in node.attributes.values()
        if attr.type == ir.AttributeType.GRAPH and not holds_programs(node)
    }  # fmt: skip
    for node in nodes:
        if node.op_type != "Constant" or node.domain or node.graph is None or node.graph in closed:
            continue
        (output,) = node.outputs
        tensor = node.attributes["value"].value if "value" in node.attributes else ir.tensor(evaluate(node)[0])
        known = ir.Value(
            name=output.name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()), const_value=tensor
        )
        ir.convenience.replace_all_uses_with([output], [known], replace_graph_outputs=True)
        node.graph.remove(node, safe=False)
