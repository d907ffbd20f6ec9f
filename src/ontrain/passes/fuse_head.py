"""A classifier's last product and its loss as one, so that the scores of all rows never exist together."""

from __future__ import annotations

import math

import onnx_ir as ir

from ontrain.functions.loss import NO_IGNORE
from ontrain.graph import Builder, static_dims
from ontrain.passes.infra import RewritePass

__all__ = ["FuseHead"]

_WORTH = 1 << 18
"""Scores from which on it pays: a mebibyte in single precision. Fewer are as quick at once, in fewer calls."""
_DTYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)


class FuseHead(RewritePass):
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

    def begin(self, graph: ir.Graph) -> None:
        """Find the losses whose scores nobody else reads."""
        self._outputs = set(graph.outputs)

    def rewrite(self, op: Builder, node: ir.Node, inputs: list[ir.Value | None]) -> list[ir.Value | None] | None:
        """Replace one loss; its Gemm is dropped with the next rebuild."""
        gemm = self._head(node)
        if gemm is None:
            return None
        copy = _maker(inputs[0])
        assert copy is not None and copy.op_type == "Gemm", "a rebuild keeps what lies before a node"
        hidden, weight, *bias = copy.inputs
        loss = op.composite(
            "LinearCrossEntropy", hidden, inputs[1], weight, *bias,
            transB=gemm.attributes.get_int("transB", 0),
            reduction=node.attributes.get_string("reduction", "mean"),
            ignore_index=node.attributes.get_int("ignore_index", NO_IGNORE),
        )  # fmt: skip
        return [loss]

    def _head(self, node: ir.Node) -> ir.Node | None:
        """The product that makes the scores of a loss, if nothing else needs them."""
        if node.op_type != "SoftmaxCrossEntropyLoss" or node.domain or len(node.inputs) > 2:
            return None
        if node.attributes.get_string("reduction", "mean") == "none":
            return None
        if any(value.uses() or value in self._outputs for value in node.outputs[1:]):
            return None
        scores = node.inputs[0]
        assert scores is not None
        shape = static_dims(scores)
        if len(shape) != 2 or math.prod(shape) < _WORTH or scores.dtype not in _DTYPES:
            return None
        made: ir.Value | None = scores
        while made is not None and len(made.uses()) == 1 and made not in self._outputs:
            maker = made.producer()
            if maker is None or maker.domain:
                return None
            if maker.op_type == "Gemm":
                half = made.dtype != scores.dtype and made.dtype != ir.DataType.BFLOAT16
                return maker if static_dims(made) == shape and _is_linear(maker) and not half else None
            made = maker.inputs[0] if maker.op_type == "Reshape" or _widens(maker) else None
        return None


def _maker(value: ir.Value | None) -> ir.Node | None:
    """The node that makes a value, but for its shape and precision."""
    node = value.producer() if value is not None else None
    while node is not None and (node.op_type == "Reshape" or _widens(node)) and not node.domain:
        assert node.inputs[0] is not None
        node = node.inputs[0].producer()
    return node


def _widens(node: ir.Node) -> bool:
    """Whether it makes float32 of bfloat16."""
    value = node.inputs[0] if node.op_type == "Cast" and not node.domain else None
    return value is not None and value.dtype == ir.DataType.BFLOAT16 and node.outputs[0].dtype == ir.DataType.FLOAT


def _is_linear(gemm: ir.Node) -> bool:
    """Whether it is x W + b with rows as they come and a bias for each column."""
    plain = gemm.attributes.get_int("transA", 0) == 0 and all(
        gemm.attributes.get_float(name, 1.0) == 1.0 for name in ("alpha", "beta")
    )
    bias = gemm.inputs[2] if len(gemm.inputs) > 2 else None
    return plain and (bias is None or static_dims(bias) == static_dims(gemm.outputs[0])[-1:])
