"""onnxruntime's fused operators of transformers as what they consist of."""

from __future__ import annotations

import onnx_ir as ir

from ontrain.functions import expand
from ontrain.graph import Builder
from ontrain.operators import record_of
from ontrain.passes.infra import RewritePass
from ontrain.passes.serving import serving_of

__all__ = ["ExpandContributed"]

_FILTER = "mask_filter_value"


class ExpandContributed(RewritePass):
    """Write onnxruntime's fused operators in operators that passes see through, in graphs for inference.

        com.microsoft.SkipLayerNormalization(x, skip, γ, β, b)   →   LayerNormalization(x + skip + b, γ, β)

    Equal because a plan would write them so in the end. It pays because the passes over rows find attention and its
    mask in a file that onnxruntime has optimised. A mask of these attentions adds −10,000 to what it hides unless the
    file says another number; where states of padding may be zeros it adds −10³⁰, next to which nothing is left of any
    score. That changes a sequence of nothing but padding alone.
    """

    serves, level = True, 2

    def begin(self, graph: ir.Graph) -> None:
        """Learn whether padding has to be computed."""
        how = serving_of(graph)
        self._hides = how is not None and how.padding != "computed"

    def has_work(self, graph: ir.Graph) -> bool:
        """Whether there is such an operator."""
        return any(record_of(node).in_encoders for node in graph)

    def rewrite(self, op: Builder, node: ir.Node, inputs: list[ir.Value | None]) -> list[ir.Value | None] | None:
        """Expand one operator."""
        if not record_of(node).in_encoders:
            return None
        if self._hides and _masks(node):
            attributes = [a for name, a in node.attributes.items() if name != _FILTER]
            attributes.append(ir.AttrFloat32(_FILTER, -1e30))
            node = ir.Node(node.domain, node.op_type, node.inputs, attributes, num_outputs=len(node.outputs))
        return expand(op, node, inputs)


def _masks(node: ir.Node) -> bool:
    """Whether an attention of float32 hides keys by a number that is not low beyond doubt."""
    place = record_of(node).mask
    if place is None or len(node.inputs) <= place or node.inputs[place] is None:
        return False
    value, first = node.attributes.get(_FILTER), node.inputs[0]
    number = -1e4 if value is None else value.as_float()
    return first is not None and first.dtype == ir.DataType.FLOAT and -1e9 < number <= -1e4
