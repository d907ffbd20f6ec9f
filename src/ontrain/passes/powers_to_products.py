"""Powers that a product or a quotient says."""

from __future__ import annotations

import onnx_ir as ir

from ontrain.graph import Builder, static_dims
from ontrain.passes.infra import RewritePass, left_alone

__all__ = ["PowersToProducts"]


class PowersToProducts(RewritePass):
    """Write squares and reciprocals as such; files have them in normalisations that are written out.

        Pow(x, 2)    →  Mul(x, x)
        Pow(x, -1)   →  Reciprocal(x)

    Equal up to the last bit, which a general power may get wrong and a product does not. torch.pow by a number computes
    the same two; kernels of a power by a tensor, as Pow is, take a logarithm and an exponential for each element.
    Left alone: other exponents, those that are not known, and those whose shape the result takes over.
    """

    def has_work(self, graph: ir.Graph) -> bool:
        """Whether there is a power."""
        return any(node.op_type == "Pow" for node in graph)

    def rewrite(self, op: Builder, node: ir.Node, inputs: list[ir.Value | None]) -> list[ir.Value | None] | None:
        """Replace the power if its exponent is one number."""
        x, exponent = (*inputs, None)[:2]
        if node.domain or node.op_type != "Pow" or x is None or exponent is None or exponent.const_value is None:
            return None
        numbers = set(exponent.const_value.numpy().ravel().tolist())
        if not numbers <= {2, -1} or len(numbers) != 1:
            return None
        if static_dims(node.outputs[0]) != static_dims(x):
            left_alone("the exponent gives the result its shape")
            return None
        if numbers == {2}:
            return [op.Mul(x, x)]
        return [op.Reciprocal(x)] if x.dtype is not None and x.dtype.is_floating_point() else None
