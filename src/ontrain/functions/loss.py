"""Gradients of the classification losses, and a linear classifier with its loss as one."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.functions.registry import composite
from ontrain.graph import Builder, static_dims
from ontrain.operators import NO_IGNORE, Value

__all__: list[str] = []


def _per_row(
    op: Builder, dloss: Value, labels: Value, weights: Value | None, dtype: ir.DataType, reduction: str,
    ignore_index: int,
) -> tuple[Value, Value]:  # fmt: skip
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
    op: Builder, dloss: Value, log_prob: Value, labels: Value, weights: Value | None = None,
    *, reduction: str = "mean", ignore_index: int = NO_IGNORE,
) -> Value:  # fmt: skip
    """Adjoint of the scores [N, C, …] from the loss's second output, log_prob; labels are [N, …].

    A row whose label is `ignore_index` gets zero. Source:
    https://onnx.ai/onnx/operators/onnx__SoftmaxCrossEntropyLoss.html
    """
    safe, coefficient = _per_row(op, dloss, labels, weights, log_prob.dtype, reduction, ignore_index)
    return coefficient * (op.Exp(log_prob) - op.Cast(_chosen(op, safe, log_prob), to=log_prob.dtype))


@composite("NegativeLogLikelihoodLossGrad", like=[1])
def negative_log_likelihood_loss_grad(
    op: Builder, dloss: Value, log_prob: Value, labels: Value, weights: Value | None = None,
    *, reduction: str = "mean", ignore_index: int = NO_IGNORE,
) -> Value:  # fmt: skip
    """Adjoint of NegativeLogLikelihoodLoss's input [N, C, …]; labels are [N, …]."""
    safe, coefficient = _per_row(op, dloss, labels, weights, log_prob.dtype, reduction, ignore_index)
    return op.Where(_chosen(op, safe, log_prob), op.Neg(coefficient), 0.0)


def _head_types(
    inputs: list[Any], *, transB: int = 1, **_: object
) -> list[tuple[ir.DataType, ir.Shape]]:  # fmt: skip
    hidden, _labels, weight = inputs[:3]
    classes = list(weight.shape)[1 - transB]
    loss = ir.DataType.FLOAT if hidden.dtype == ir.DataType.BFLOAT16 else hidden.dtype
    types = [(loss, ir.Shape([])), (hidden.dtype, hidden.shape), (weight.dtype, weight.shape)]
    return [*types, (weight.dtype, ir.Shape([classes]))]


@composite("LinearCrossEntropy", infer=_head_types)
def linear_cross_entropy(
    op: Builder, hidden: Value, labels: Value, weight: Value, bias: Value | None = None,
    *, transB: int = 1, reduction: str = "mean", ignore_index: int = NO_IGNORE,
) -> tuple[Value, Value, Value, Value]:  # fmt: skip
    """Cross entropy of the scores hidden [R, K] · weightᵀ + bias and labels [R], and its gradient, 0-d and three more.

    weight is [V, K], with transB 0 [K, V]; bias is [V]. The gradients belong to hidden, weight and bias, for an adjoint
    of one: `ScaleGrad` multiplies them with the real one. So scores need to exist only once, and for some of the rows
    at a time. In bfloat16 the products are, and loss and softmax are float32, as under torch.autocast.
    Source: https://onnx.ai/onnx/operators/onnx__SoftmaxCrossEntropyLoss.html; the gradient made going forward as in
    Liger-Kernel's fused linear cross entropy and torch.nn.functional.linear_cross_entropy.
    """
    scores = op.Gemm(hidden, weight, bias, transB=transB)
    half = hidden.dtype == ir.DataType.BFLOAT16
    scores = op.Cast(scores, to=ir.DataType.FLOAT) if half else scores
    loss, log_prob = op.SoftmaxCrossEntropyLoss(
        scores, labels, outputs=2, reduction=reduction, ignore_index=ignore_index
    )
    dscores = op.composite(
        "SoftmaxCrossEntropyLossGrad", op.const(1.0, scores.dtype), log_prob, labels,
        reduction=reduction, ignore_index=ignore_index,
    )  # fmt: skip
    dbias = op.ReduceSum(dscores, [0], keepdims=0)
    if half:
        dbias, dscores = (op.Cast(gradient, to=hidden.dtype) for gradient in (dbias, dscores))
    dhidden = op.Gemm(dscores, weight, transB=1 - transB)
    dweight = op.Gemm(dscores, hidden, transA=1) if transB else op.Gemm(hidden, dscores, transA=1)
    return loss, dhidden, dweight, dbias


@composite("ScaleGrad", like=[0])
def scale_grad(op: Builder, unit: Value, dy: Value) -> Value:
    """unit · dy: the gradient of a scalar for its adjoint dy (0-d), from the gradient for an adjoint of one."""
    return unit * op.Cast(dy, to=unit.dtype)


def _chosen(op: Builder, labels: Value, like: Value) -> Value:
    """Whether an entry of `like` [N, C, …] is its row's label. Not OneHot, which knows no bfloat16."""
    shape = static_dims(like)
    classes = np.arange(shape[1], dtype=labels.dtype.numpy()).reshape([1, -1] + [1] * (len(shape) - 2))
    return op.Equal(op.Unsqueeze(labels, [1]), classes)
