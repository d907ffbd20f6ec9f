"""Linear layers of a graph whose sizes are open: bias and product in one, weights as they are multiplied by."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ontrain.graph import Builder
from ontrain.passes.fusion import Fusion, Match, Pattern, fail
from ontrain.passes.inference.weights import weights_of
from ontrain.passes.infra import RewritePass

__all__ = ["FuseMatMulAdd", "TransposeWeights"]

_TYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
"""Those that onnxruntime has the kernel for."""


class FuseMatMulAdd(Fusion):
    """Turn a product of matrices and its bias into one Gemm.

        MatMul(x[M, K], Transpose(W[N, K])) + b[N]   →   Gemm(x, W, b, transB=1)
        MatMul(x[M, K], W[K, N]) + b[N]              →   Gemm(x, W, b)

    Equal by the definition of Gemm. Left alone: products with more axes than two, a bias that is not one number a
    column, and a product that others read.
    """

    tidies = True
    patterns = (Pattern("Add", (Pattern("MatMul", ("x", "w"), name="product"), "b"), commutes=True),)

    def check(self, match: Match) -> None:
        """Look for matrices, and for one number a column."""
        x, w, b = match["x"], match["w"], match["b"]
        if x.shape is None or w.shape is None or len(x.shape) != 2 or len(w.shape) != 2:
            fail("it is no product of two matrices")
        if x.dtype not in _TYPES:
            fail("there is no Gemm of its dtype everywhere")
        if b.shape is None or len(b.shape) != 1 or b.shape[0] != w.shape[1] or not isinstance(w.shape[1], int):
            fail("what is added to the product is not one number a column")

    def replace(self, op: Builder, match: Match, operands: dict[str, ir.Value | None]) -> list[ir.Value | None]:
        """Emit the Gemm."""
        w = operands["w"]
        maker = w.producer() if w is not None else None
        if maker is None or maker.domain or maker.op_type != "Transpose":
            return [op.Gemm(operands["x"], w, operands["b"])]
        return [op.Gemm(operands["x"], maker.inputs[0], operands["b"], transB=1)]


class TransposeWeights(RewritePass):
    """Transpose weights once instead of in each run.

        Transpose(W)   →   Wᵀ, a weight of the same name

    Left alone: weights that are read in two ways, as an embedding that is the head, too: both would be stored.
    """

    tidies = True

    def begin(self, graph: ir.Graph) -> None:
        """Find the weights that are read in one way."""
        self._weights = weights = weights_of(graph)
        self._alone: set[ir.Node] = set()
        self._transposed: dict[str, ir.Value] = {}
        for value in graph.inputs:
            readers = [use.node for use in value.uses()]
            ways = {_perm(node) for node in readers}
            if weights.is_weight(value) and None not in ways and len(ways) == 1 and not value.is_graph_output():
                self._alone.update(readers)

    def has_work(self, graph: ir.Graph) -> bool:
        """Whether there is such a weight."""
        return bool(self._alone)

    def rewrite(self, op: Builder, node: ir.Node, inputs: list[ir.Value | None]) -> list[ir.Value | None] | None:
        """Make the transposed weight, once."""
        if node not in self._alone or inputs[0] is None:
            return None
        name = inputs[0].name or ""
        if name not in self._transposed:
            turned = np.ascontiguousarray(np.transpose(self._weights.array(inputs[0]), _perm(node) or None))
            self._transposed[name] = self._weights.add(op, inputs[0], turned)
        return [self._transposed[name]]


def _perm(node: ir.Node) -> tuple[int, ...] | None:
    """The order of a Transpose's axes, () for the reverse; None for other operators."""
    if node.domain or node.op_type != "Transpose":
        return None
    perm = node.attributes.get("perm")
    return () if perm is None else tuple(perm.as_ints())
