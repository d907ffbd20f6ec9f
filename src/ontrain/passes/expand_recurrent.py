"""Recurrent layers as loops over time."""

from __future__ import annotations

import onnx_ir as ir

from ontrain.functions import expand, node_flops
from ontrain.graph import Builder
from ontrain.operators import is_plain_layer, operand_of, record_of
from ontrain.passes.infra import RewritePass
from ontrain.passes.serving import serving_of

__all__ = ["ExpandRecurrent"]


_FEW = 4e6
"""Operations of a layer that takes some 50 microseconds."""


class ExpandRecurrent(RewritePass):
    """Write LSTM, GRU and RNN as one product with the whole input and a loop over time.

        GRU(x, w, r, …)   →   xw = MatMul(x, wᵀ); Loop over the rows of xw
        LSTM(x, w, r, …)   →   LstmLayer(x, w, r, …)

    An LSTM with no more than gates and states becomes the composite, of which a provider may have a kernel. Equal
    because it is the operator's definition. Done before differentiation, so that the loop computes the states
    that its gradient reads; the operator would be computed a second time. Attributes that no body expresses are an
    error with the node's name. Left alone: all other operators; and in a graph that a session for inference runs,
    small and other layers with no more than gates and states, which the provider runs whole.
    """

    level = 0

    def has_work(self, graph: ir.Graph) -> bool:
        """Whether there is a recurrent layer."""
        return any(record_of(node).recurrent for node in graph)

    def begin(self, graph: ir.Graph) -> None:
        """Look who runs the graph."""
        self._serves = serving_of(graph) is not None

    def rewrite(self, op: Builder, node: ir.Node, inputs: list[ir.Value | None]) -> list[ir.Value | None] | None:
        """Expand one layer."""
        if not record_of(node).recurrent or (self._serves and _runs_whole(node)):
            return None
        return expand(op, node, inputs)


def _runs_whole(node: ir.Node) -> bool:
    """Whether a provider runs the layer as the standard has it; an LSTM without lengths has a composite for that.

    The composite's kernel is for layers that have something to compute.
    """
    if not is_plain_layer(node):
        return False
    has_lengths = operand_of(node, 4) is not None
    return node.op_type != "LSTM" or has_lengths or node_flops(node).total <= _FEW
