"""A linear layer's product and bias as one Gemm on flattened rows."""

from __future__ import annotations

import math

import onnx_ir as ir

from ontrain.graph import Builder, static_dims
from ontrain.passes.fusion import Fusion, Match, Pattern, fail

__all__ = ["LinearToGemm"]

_PRODUCT = Pattern("MatMul", ("x", "w"), name="product")


class LinearToGemm(Fusion):
    """Turn products with a matrix into Gemm, before differentiation.

        MatMul(x[…, K], Transpose(W[N, K])) (+ b[N])   →   Reshape(Gemm(Reshape(x, [-1, K]), W, b, transB=1))
        MatMul(x[…, K], V[K, N]) (+ b[N])              →   Reshape(Gemm(Reshape(x, [-1, K]), V, b))

    Equal because a matrix acts on each row alone. It pays twice: the bias rides along with the product, and the
    gradient of Gemm gives the weight's adjoint directly in the weight's own layout, as one 2-D product over all rows.
    Left alone: products of two batches, vectors, and a MatMul whose result others read beside the Add.
    """

    patterns = (Pattern("Add", (_PRODUCT, "b"), commutes=True), _PRODUCT)

    def check(self, match: Match) -> None:
        """Look for a matrix, and for one number a column."""
        product = match.nodes["product"]
        if len(static_dims(match["w"])) != 2 or len(static_dims(match["x"])) < 2:
            fail("it is a product of batches, or of vectors")
        if "b" in match.values and static_dims(match["b"]) != static_dims(product.outputs[0])[-1:]:
            fail("what is added to the product is not one number a column")

    def replace(self, op: Builder, match: Match, operands: dict[str, ir.Value | None]) -> list[ir.Value | None]:
        """Emit the Gemm, flattened where the product has more rows than one axis holds."""
        x, w = operands["x"], operands["w"]
        assert x is not None and w is not None
        shape, maker = static_dims(match.node.outputs[0]), w.producer()
        transposed = maker is not None and maker.op_type == "Transpose"
        if maker is not None and transposed:
            w = maker.inputs[0]
        flat = x if len(static_dims(x)) == 2 else op.Reshape(x, [math.prod(shape[:-1]), static_dims(x)[-1]])
        gemm: ir.Value = op.Gemm(flat, w, operands.get("b"), transB=1 if transposed else 0)
        return [gemm if len(shape) == 2 else op.Reshape(gemm, list(shape))]
