"""Gradients of the classification losses."""

from __future__ import annotations

from typing import Any

import numpy as np

from ontrain.functions.registry import composite
from ontrain.graph import static_dims

__all__ = ["NO_IGNORE"]

NO_IGNORE = -(2**31)
"""The value of `ignore_index` that ignores nothing."""


def _per_row(
    op: Any, dloss: Any, labels: Any, weights: Any, dtype: Any, reduction: str, ignore_index: int
) -> tuple[Any, Any]:
    """Labels made safe to index with, and the adjoint of each row's own loss term.

    An ignored row gets zero, also where all rows are ignored and the loss itself is 0/0 (as in torch).
    """
    valid = op.Not(op.Equal(labels, ignore_index))
    safe = op.Where(valid, labels, 0)
    row = op.Where(valid, op.Gather(weights, safe, axis=0) if weights is not None else op.const(1.0, dtype), 0.0)
    if reduction == "mean":
        dloss = dloss / op.ReduceSum(row, keepdims=0)
    return safe, op.Unsqueeze(op.Where(valid, dloss * row, 0.0), [1])


@composite("SoftmaxCrossEntropyLossGrad", like=[1])
def softmax_cross_entropy_loss_grad(
    op: Any, dloss: Any, log_prob: Any, labels: Any, weights: Any = None,
    *, reduction: str = "mean", ignore_index: int = NO_IGNORE,
) -> Any:  # fmt: skip
    """Adjoint of the scores [N, C, …] from the loss's second output, log_prob; labels are [N, …].

    A row whose label is `ignore_index` gets zero. Source:
    https://onnx.ai/onnx/operators/onnx__SoftmaxCrossEntropyLoss.html
    """
    safe, coefficient = _per_row(op, dloss, labels, weights, log_prob.dtype, reduction, ignore_index)
    return coefficient * (op.Exp(log_prob) - op.Cast(_chosen(op, safe, log_prob), to=log_prob.dtype))


@composite("NegativeLogLikelihoodLossGrad", like=[1])
def negative_log_likelihood_loss_grad(
    op: Any, dloss: Any, log_prob: Any, labels: Any, weights: Any = None,
    *, reduction: str = "mean", ignore_index: int = NO_IGNORE,
) -> Any:  # fmt: skip
    """Adjoint of NegativeLogLikelihoodLoss's input [N, C, …]; labels are [N, …]."""
    safe, coefficient = _per_row(op, dloss, labels, weights, log_prob.dtype, reduction, ignore_index)
    return op.Where(_chosen(op, safe, log_prob), op.Neg(coefficient), 0.0)


def _chosen(op: Any, labels: Any, like: Any) -> Any:
    """Whether an entry of `like` [N, C, …] is its row's label. Not OneHot, which knows no bfloat16."""
    shape = static_dims(like)
    classes = np.arange(shape[1], dtype=labels.dtype.numpy()).reshape([1, -1] + [1] * (len(shape) - 2))
    return op.Equal(op.Unsqueeze(labels, [1]), classes)
