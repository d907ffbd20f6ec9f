"""A linear layer's product and bias as one Gemm on flattened rows."""

from __future__ import annotations

import math

import onnx_ir as ir

from ontrain.graph import Builder, static_dims
from ontrain.passes.infra import RewritePass

__all__ = ["LinearToGemm"]


class LinearToGemm(RewritePass):
    """Turn products with a matrix into Gemm, before differentiation.

        MatMul(x[…, K], Transpose(W[N, K])) (+ b[N])   →   Reshape(Gemm(Reshape(x, [-1, K]), W, b, transB=1))
        MatMul(x[…, K], V[K, N]) (+ b[N])              →   Reshape(Gemm(Reshape(x, [-1, K]), V, b))

    Equal because a matrix acts on each row alone. It pays twice: the bias rides along with the product, and the
    gradient of Gemm gives the weight's adjoint directly in the weight's own layout, as one 2-D product over all rows.
    Left alone: products of two batches, vectors, and a MatMul whose result others read beside the Add.
    """

    def begin(self, graph: ir.Graph) -> None:
        """Find the Adds that can take a product along."""
        self._biased: dict[ir.Node, ir.Node] = {}
        outputs = set(graph.outputs)
        for node in graph:
            if node.op_type != "Add" or node.domain:
                continue
            for product, bias in (node.inputs, node.inputs[::-1]):
                if product is None or bias is None:
                    continue
                producer = product.producer()
                if (
                    producer is not None
                    and _is_linear(producer)
                    and producer not in self._biased.values()
                    and len(product.uses()) == 1
                    and product not in outputs
                    and bias.shape is not None
                    and static_dims(bias) == static_dims(product)[-1:]
                ):
                    self._biased[node] = producer
                    break
        self._absorbed = set(self._biased.values())

    def rewrite(self, op: Builder, node: ir.Node, inputs: list[ir.Value | None]) -> list[ir.Value | None] | None:
        """Rewrite one MatMul or one Add that carries a bias."""
        if node in self._absorbed:
            # Kept for now: its Add makes the Gemm, and the next rebuild drops what nobody reads.
            return None
        product = self._biased.get(node)
        if product is None:
            if not _is_linear(node):
                return None
            x, w = inputs
            return [_gemm(op, x, w, None, static_dims(node.outputs[0]))]
        at = 0 if node.inputs[0] is not None and node.inputs[0].producer() is product else 1
        copy, bias = inputs[at], inputs[1 - at]
        assert copy is not None
        made = copy.producer()
        assert made is not None
        x, w = made.inputs
        return [_gemm(op, x, w, bias, static_dims(node.outputs[0]))]


def _is_linear(node: ir.Node) -> bool:
    if node.op_type != "MatMul" or node.domain:
        return False
    x, w = node.inputs
    return x is not None and w is not None and len(static_dims(w)) == 2 and len(static_dims(x)) >= 2


def _gemm(
    op: Builder, x: ir.Value | None, w: ir.Value | None, bias: ir.Value | None, shape: tuple[int, ...]
) -> ir.Value:
    assert x is not None and w is not None
    producer = w.producer()
    transposed = producer is not None and producer.op_type == "Transpose"
    if transposed:
        assert producer is not None and producer.inputs[0] is not None
        w = producer.inputs[0]
    rows = math.prod(shape[:-1])
    flat = x if len(static_dims(x)) == 2 else op.Reshape(x, [rows, static_dims(x)[-1]])
    made: ir.Value = op.Gemm(flat, w, bias, transB=1 if transposed else 0)
    return made if len(shape) == 2 else op.Reshape(made, list(shape))
