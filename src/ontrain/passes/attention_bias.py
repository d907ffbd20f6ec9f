"""What an attention adds to its scores, and the attention with something else in its place."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ontrain.graph import DOMAIN, Builder

__all__ = ["bias_of", "with_bias"]


def bias_of(node: ir.Node) -> ir.Value | None:
    """Return what an Attention adds to its scores; None for nothing, and of other operators."""
    is_attention = (node.domain, node.op_type) == (DOMAIN, "Attention")
    return node.inputs[3] if is_attention and len(node.inputs) > 3 else None


def with_bias(
    op: Builder, node: ir.Node, inputs: Sequence[ir.Value | None], bias: ir.Value | None
) -> list[ir.Value | None]:
    """Emit an Attention again, and return its outputs.

    Args:
        op: of the new graph.
        node: in the old one.
        inputs: its operands in the new one.
        bias: is added to the scores; None for nothing.
    """
    operands = [*inputs[:3], bias, *inputs[4:]]
    while operands[-1] is None:
        operands.pop()
    attributes, outputs = list(node.attributes.values()), len(node.outputs)
    copy = ir.Node(node.domain, node.op_type, operands, attributes, num_outputs=outputs)
    results = op.add(copy, [v.name for v in node.outputs])
    return list(results) if isinstance(results, tuple) else [results]
