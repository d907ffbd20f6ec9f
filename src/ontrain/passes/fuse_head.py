"""A classifier's last product and its loss as one, so that the scores of all rows never exist together."""

from __future__ import annotations

import math

import onnx_ir as ir

from ontrain.graph import Builder, static_dims
from ontrain.operators import NO_IGNORE, operand_of
from ontrain.passes.fusion import Fusion, Match, Pattern, fail

__all__ = ["FuseHead"]

_WORTH = 1 << 18
"""Scores from which on it pays: a mebibyte in single precision. Fewer are as quick at once, in fewer calls."""
_DTYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)


def _widens(node: ir.Node) -> bool:
    """Whether it makes float32 of bfloat16."""
    value = node.inputs[0] if node.op_type == "Cast" and not node.domain else None
    return value is not None and value.dtype == ir.DataType.BFLOAT16 and node.outputs[0].dtype == ir.DataType.FLOAT


def _passes_on(node: ir.Node) -> bool:
    return not node.domain and (node.op_type == "Reshape" or _widens(node))


_GEMM = Pattern("Gemm", ("hidden", "weight", "bias?"), name="gemm", through=_passes_on)


class FuseHead(Fusion):
    """Let the loss make its own scores, before differentiation.

        Gemm(h[R, K], W[V, K], b[V], transB=1) (─ Reshape) ─ SoftmaxCrossEntropyLoss(labels[R], ignore_index)
    →   LinearCrossEntropy(h, labels, W, b, ignore_index)

    Equal because it is the same function; its gradient is made together with it, some rows at a time, for an adjoint
    of one, which is right up to the factor that comes later: the loss is one number. A vocabulary of 50,000 makes the
    scores the largest tensor of a step, and log-probabilities and their adjoint come on top.
    In bfloat16 a Cast to float32 may stand before the loss, as autocast puts it there.
    Left alone: scores that others read, the model's outputs among them; losses a row, or with class weights; losses of
    scores in half precision; float16, whose gradient needs the scale of the loss; scores of less than a mebibyte.
    """

    level = 2
    patterns = (Pattern("SoftmaxCrossEntropyLoss", (_GEMM, "labels", "weights?"), name="loss"),)

    def begin(self, graph: ir.Graph) -> None:
        """Find the losses."""
        self._outputs = set(graph.outputs)
        super().begin(graph)

    def check(self, match: Match) -> None:
        """Look for one number as the loss, and for scores that are worth it."""
        loss, gemm = match.node, match.nodes["gemm"]
        if match.values["weights"] is not None:
            fail("classes have weights")
        if loss.attributes.get_string("reduction", "mean") == "none":
            fail("each row has a loss of its own")
        if any(value.uses() or value in self._outputs for value in loss.outputs[1:]):
            fail("others read the log-probabilities")
        scores, product = loss.inputs[0], gemm.outputs[0]
        assert scores is not None
        shape = static_dims(scores)
        if len(shape) != 2 or static_dims(product) != shape:
            fail("a row of the product is not a row of the loss")
        if math.prod(shape) < _WORTH:
            fail("the scores are small")
        if scores.dtype not in _DTYPES or product.dtype not in (scores.dtype, ir.DataType.BFLOAT16):
            fail("the scores are in half precision")
        if not _is_linear(gemm):
            fail("the product is scaled, or what is added to it is not one number a class")

    def replace(self, op: Builder, match: Match, operands: dict[str, ir.Value | None]) -> list[ir.Value | None]:
        """Emit the composite."""
        bias = [operands["bias"]] if operands["bias"] is not None else []
        loss = op.composite(
            "LinearCrossEntropy", operands["hidden"], operands["labels"], operands["weight"], *bias,
            transB=match.nodes["gemm"].attributes.get_int("transB", 0),
            reduction=match.node.attributes.get_string("reduction", "mean"),
            ignore_index=match.node.attributes.get_int("ignore_index", NO_IGNORE),
        )  # fmt: skip
        return [loss]


def _is_linear(gemm: ir.Node) -> bool:
    """Whether it is x W + b with rows as they come and a bias for each column."""
    plain = gemm.attributes.get_int("transA", 0) == 0 and all(
        gemm.attributes.get_float(name, 1.0) == 1.0 for name in ("alpha", "beta")
    )
    bias = operand_of(gemm, 2)
    return plain and (bias is None or static_dims(bias) == static_dims(gemm.outputs[0])[-1:])
