"""What is computed from weights alone, computed once."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from ontrain.graph import Builder, evaluate, static_dims, subgraphs
from ontrain.operators import Chance, Evaluator, record_of
from ontrain.passes.inference.weights import weights_of
from ontrain.passes.infra import RewritePass

__all__ = ["FoldWeights"]

_GROWTH = 8
"""Times the bytes of its operands that a folded value takes at most: four-bit numbers become single precision."""
_SMALL = 64 << 10
"""Bytes up to which any value is folded."""


class FoldWeights(RewritePass):
    """Compute once what depends on weights alone.

        f(w, v), all of them weights or constants   →   a weight of its own

    Files with quantised weights spell out how these become numbers, at each run: Mul(Cast(w), scale). Tables of whole
    numbers are constants of the graph, of which a builder folds the small ones only. Equal because a session for
    inference never changes a weight. It is for sessions alone: in a file the weight would lose its name. Left
    alone: random numbers, branches and loops, and values much larger than what they are made of.
    """

    def begin(self, graph: ir.Graph) -> None:
        """Find the weights."""
        self._weights = weights_of(graph)

    def has_work(self, graph: ir.Graph) -> bool:
        """Whether a node depends on weights alone."""
        return any(self._depends_on_weights(node, node.inputs) for node in graph)

    def _depends_on_weights(self, node: ir.Node, inputs: Sequence[ir.Value | None]) -> bool:
        present = [value for value in inputs if value is not None]
        if node.domain or not present or not all(map(self._weights.holds, present)) or subgraphs(node):
            return False
        record = record_of(node)
        if record.evaluator is not Evaluator.WHOLE or record.chance is not Chance.NEVER:
            return False
        return not any(v.is_graph_output() or v.shape is None or not v.shape.is_static() for v in node.outputs)

    def rewrite(self, op: Builder, node: ir.Node, inputs: list[ir.Value | None]) -> list[ir.Value | None] | None:
        """Make weights of a node's results."""
        if not self._depends_on_weights(node, inputs):
            return None
        weights = self._weights
        arrays = [None if value is None else weights.array(value) for value in inputs]
        before = sum(array.nbytes for array in arrays if array is not None)
        after = sum(math.prod(static_dims(v)) * math.ceil(v.dtype.itemsize) for v in node.outputs if v.dtype)
        if after > max(_SMALL, _GROWTH * before):
            return None
        operands = [
            None if array is None else ir.Value(name=f"i{i}", const_value=ir.tensor(array, name=f"i{i}"))
            for i, array in enumerate(arrays)
        ]
        copy = ir.Node(
            "", node.op_type, operands, node.attributes.values(),
            outputs=[ir.Value(name=v.name, shape=v.shape, type=v.type) for v in node.outputs],
        )  # fmt: skip
        results = evaluate(copy)
        return [
            weights.add_named(op, value.name or "weight", result)
            for value, result in zip(node.outputs, results, strict=True)
        ]
