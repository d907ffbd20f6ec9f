"""Weights of one number as constants."""

from __future__ import annotations

import onnx_ir as ir

from ontrain.graph import Builder
from ontrain.operators import each
from ontrain.passes.inference.weights import weights_of
from ontrain.passes.infra import RewritePass

__all__ = ["SettleNumbers"]


class SettleNumbers(RewritePass):
    """Make constants of weights that hold one number, as some files have those of a formula.

        f(x, w [1])   →   f(x, the number)

    Equal because a session for inference never changes a weight. Other passes see the number. It is for sessions alone:
    in a file the number would lose its name.
    """

    level, looks_first = 2, True

    def begin(self, graph: ir.Graph) -> None:
        """Find the weights."""
        self._weights = weights_of(graph)

    def rewrite(self, op: Builder, node: ir.Node, inputs: list[ir.Value | None]) -> list[ir.Value | None] | None:
        """Make a node again with the numbers."""
        settled = [self._settled(op, value) for value in inputs]
        if all(new is old for new, old in zip(settled, inputs, strict=True)):
            return None
        copy = ir.Node(node.domain, node.op_type, settled, node.attributes.values(), num_outputs=len(node.outputs))
        return [*each(op.add(copy, [value.name for value in node.outputs]))]

    def _settled(self, op: Builder, value: ir.Value | None) -> ir.Value | None:
        if value is None or not self._weights.is_weight(value) or value.shape is None:
            return value
        return op.const(self._weights.array(value)) if set(value.shape) <= {1} else value
