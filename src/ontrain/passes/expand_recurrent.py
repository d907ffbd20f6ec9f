"""Recurrent layers as loops over time."""

from __future__ import annotations

import onnx_ir as ir

from ontrain.functions import expand, node_flops
from ontrain.graph import Builder
from ontrain.operators import has_stock_kernel, is_plain_layer, operand_of, record_of, static_dims
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
    error with the node's name. Left alone: all other operators; and in a graph that a session for inference runs, the
    layers that the provider runs whole: a GRU, an RNN, an LSTM that is small or of one sequence, and in single
    precision one with lengths, peepholes, bounds or other activations that onnxruntime's kernel has.
    """

    level = 0

    def has_work(self, graph: ir.Graph) -> bool:
        """Whether there is a layer to expand."""
        return any(map(self._expands, graph))

    def begin(self, graph: ir.Graph) -> None:
        """Look who runs the graph."""
        self._serves = serving_of(graph) is not None

    def rewrite(self, op: Builder, node: ir.Node, inputs: list[ir.Value | None]) -> list[ir.Value | None] | None:
        """Expand one layer."""
        return expand(op, node, inputs) if self._expands(node) else None

    def _expands(self, node: ir.Node) -> bool:
        return record_of(node).recurrent and not (self._serves and _runs_whole(node))


def _runs_whole(node: ir.Node) -> bool:
    """Whether a provider runs the layer as the standard has it; an LSTM without lengths has a composite for that.

    The composite's kernel is for layers that have something to compute, and for several sequences at once: the steps
    of one go to the same kernel either way, and as the standard has it a layer stands in a row with its neighbours.
    """
    if not is_plain_layer(node):
        # ATen has no kernel for such a layer: a loop would be several calls for each step.
        x = operand_of(node, 0)
        return x is not None and x.dtype == ir.DataType.FLOAT and has_stock_kernel(node)
    has_lengths = operand_of(node, 4) is not None
    return node.op_type != "LSTM" or has_lengths or _has_one_sequence(node) or node_flops(node).total <= _FEW


def _has_one_sequence(node: ir.Node) -> bool:
    x = node.inputs[0]
    assert x is not None
    return static_dims(x)[1:2] == (1,)
