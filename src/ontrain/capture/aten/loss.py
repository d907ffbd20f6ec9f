"""Loss functions."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from ontrain.capture.aten.linear import linear
from ontrain.capture.aten.precision import in_single
from ontrain.capture.aten.registry import aten
from ontrain.capture.aten.selection import together
from ontrain.capture.aten.special import xlogy
from ontrain.capture.context import AtenBuilder, Dim
from ontrain.operators import Value
from ontrain.sizes import Size

__all__ = ["reduced"]

_REDUCTIONS = ("none", "mean", "sum")


def reduced(op: AtenBuilder, x: Value, reduction: int) -> Value:
    """Return x, its mean or its sum, by torch's number of the reduction: 0, 1 or 2."""
    return x if reduction == 0 else (op.ReduceMean if reduction == 1 else op.ReduceSum)(x, keepdims=0)


@aten("cross_entropy_loss")
def cross_entropy_loss(
    op: AtenBuilder, x: Value, target: Value, weight: Value | None = None, reduction: int = 1, ignore_index: Dim = -100,
    label_smoothing: float = 0.0,
) -> Value:  # fmt: skip
    unbatched = len(op.input_shape(0)) == 1
    if unbatched:
        x, target = op.Unsqueeze(x, [0]), op.Unsqueeze(target, [0])
    target, ignore_index = _fixed_ignore(op, target, ignore_index)
    loss = _cross_entropy(op, x, target, weight, reduction, ignore_index, label_smoothing)
    return op.Squeeze(loss, [0]) if unbatched and reduction == 0 else loss


def _cross_entropy(
    op: AtenBuilder, x: Value, target: Value, weight: Value | None, reduction: int, ignore_index: int,
    label_smoothing: float,
) -> Value:  # fmt: skip
    if target.dtype.is_floating_point():
        return _probability_targets(op, x, target, weight, reduction, label_smoothing)
    if label_smoothing:
        return _smoothed(op, x, target, weight, reduction, ignore_index, label_smoothing)
    loss, _ = op.SoftmaxCrossEntropyLoss(
        x, _labels(op, target), weight, reduction=_REDUCTIONS[reduction], ignore_index=ignore_index, outputs=2
    )
    return loss


@aten("torch_nn::_linear_cross_entropy_batch_chunked")
def linear_cross_entropy(
    op: AtenBuilder, x: Value, head: Value, target: Value, bias: Value | None, weight: Value | None, reduction: str,
    ignore_index: int, label_smoothing: float, *_chunks: object,
) -> tuple[Value, None, None, None]:  # fmt: skip
    """The loss of a linear layer's scores, which torch computes some rows at a time, its gradients with it.

    Only the loss has a reader: the gradients are what torch keeps for its own backward.
    """
    scores = linear(op, x, head, bias)
    loss = _cross_entropy(op, scores, target, weight, _REDUCTIONS.index(reduction), ignore_index, label_smoothing)
    return loss, None, None, None


@aten("torch_nn::_linear_cross_entropy_batch_chunked_no_reduction")
def linear_cross_entropy_of_rows(
    op: AtenBuilder, x: Value, head: Value, target: Value, bias: Value | None, weight: Value | None,
    ignore_index: int, *_chunks: object,
) -> Value:  # fmt: skip
    """As above, the loss of each row."""
    return _cross_entropy(op, linear(op, x, head, bias), target, weight, 0, ignore_index, 0.0)


def _fixed_ignore(op: AtenBuilder, target: Value, ignore_index: Dim) -> tuple[Any, int]:
    """Labels and an ignore_index that is a number: one that is a varying size (Hugging Face's span heads ignore the
    place after the last token) is moved to −100, as the operator's attribute cannot vary."""
    if not isinstance(ignore_index, Size):
        return target, ignore_index
    labels = _labels(op, target)
    ignored = op.Equal(labels, op.cast(op.scalar(ignore_index), labels.dtype))
    return op.Where(ignored, op.cast(-100, labels.dtype), labels), -100


def _labels(op: AtenBuilder, target: Value) -> Value:
    return target if target.dtype in (ir.DataType.INT64, ir.DataType.INT32) else op.Cast(target, to=ir.DataType.INT64)


def _class_weights(op: AtenBuilder, weight: Value, rank: int) -> Value:
    return op.Reshape(weight, [-1, *[1] * (rank - 2)])


def _classes(scores: Value) -> int:
    classes = scores.shape[1]
    assert isinstance(classes, int), "the number of classes varies"
    return classes


def _probability_targets(
    op: AtenBuilder, x: Value, target: Value, weight: Value | None, reduction: int, label_smoothing: float
) -> Value:
    classes, log_prob, target = _classes(x), op.cast(op.LogSoftmax(x, axis=1), op.dtype), op.cast(target, op.dtype)
    if label_smoothing:
        target = target * op.cast(1 - label_smoothing, op.dtype) + op.cast(label_smoothing / classes, op.dtype)
    terms = log_prob * target
    if weight is not None:
        terms = terms * op.cast(_class_weights(op, weight, len(x.shape)), op.dtype)
    per_row = op.Neg(op.ReduceSum(terms, [1], keepdims=0))
    return reduced(op, per_row, reduction)


def _smoothed(
    op: AtenBuilder, x: Value, target: Value, weight: Value | None, reduction: int, ignore_index: int,
    label_smoothing: float,
) -> Value:  # fmt: skip
    """(1 − ε) · nll + ε/C · Σ_c −log p_c, the second term weighted and averaged as torch does it."""
    labels, log_prob = _labels(op, target), op.LogSoftmax(x, axis=1)
    nll = op.NegativeLogLikelihoodLoss(
        log_prob, labels, weight, reduction=_REDUCTIONS[reduction], ignore_index=ignore_index
    )
    terms = log_prob if weight is None else log_prob * _class_weights(op, weight, len(x.shape))
    ignored, zero = op.Equal(labels, op.cast(ignore_index, labels.dtype)), op.cast(0, x.dtype)
    smooth = op.Where(ignored, zero, op.Neg(op.ReduceSum(terms, [1], keepdims=0)))
    if reduction:
        smooth = op.ReduceSum(smooth, keepdims=0)
    if reduction == 1:
        if weight is None:
            rows = op.Cast(op.Not(ignored), to=x.dtype)
        else:
            safe = op.Where(ignored, op.cast(0, labels.dtype), labels)
            rows = op.Where(ignored, zero, op.Gather(weight, safe, axis=0))
        smooth = smooth / op.ReduceSum(rows, keepdims=0)
    return nll * op.cast(1 - label_smoothing, x.dtype) + smooth * op.cast(label_smoothing / _classes(x), x.dtype)


@aten("nll_loss_nd", "nll_loss", "nll_loss2d")
def nll_loss(
    op: AtenBuilder, x: Value, target: Value, weight: Value | None = None, reduction: int = 1, ignore_index: Dim = -100
) -> Value:
    unbatched = len(op.input_shape(0)) == 1
    if unbatched:
        x, target = op.Unsqueeze(x, [0]), op.Unsqueeze(target, [0])
    target, ignore_index = _fixed_ignore(op, target, ignore_index)
    loss = op.NegativeLogLikelihoodLoss(
        x, _labels(op, target), weight, reduction=_REDUCTIONS[reduction], ignore_index=ignore_index
    )
    return op.Squeeze(loss, [0]) if unbatched and reduction == 0 else loss


@aten("nll_loss_forward", "nll_loss2d_forward")
def nll_loss_forward(
    op: AtenBuilder, x: Value, target: Value, weight: Value | None, reduction: int, ignore_index: int
) -> tuple[Value, None]:
    return nll_loss(op, x, target, weight, reduction, ignore_index), None


def _pair(op: AtenBuilder, x: Value, target: Value) -> list[Any]:
    """Both operands in the dtype of the result, and in the shape to which they broadcast."""
    shapes = [op.input_shape(0), op.input_shape(1)]
    full = together(shapes)
    return [op.expand(op.cast(v, op.dtype), full, own) for v, own in zip((x, target), shapes, strict=True)]


@aten("mse_loss")
def mse_loss(op: AtenBuilder, x: Value, target: Value, reduction: int = 1) -> Value:
    return reduced(op, op.composite("SquaredError", *_pair(op, x, target)), reduction)


@aten("l1_loss")
def l1_loss(op: AtenBuilder, x: Value, target: Value, reduction: int = 1) -> Value:
    return reduced(op, op.Abs(op.cast(x, op.dtype) - op.cast(target, op.dtype)), reduction)


@aten("smooth_l1_loss")
def smooth_l1_loss(op: AtenBuilder, x: Value, target: Value, reduction: int = 1, beta: float = 1.0) -> Value:
    if beta == 0:
        return l1_loss(op, x, target, reduction)
    return reduced(op, op.composite("Huber", *_pair(op, x, target), delta=float(beta), unit_slope=1), reduction)


@aten("huber_loss")
def huber_loss(op: AtenBuilder, x: Value, target: Value, reduction: int = 1, delta: float = 1.0) -> Value:
    return reduced(op, op.composite("Huber", *_pair(op, x, target), delta=float(delta)), reduction)


@aten("binary_cross_entropy")
@in_single
def binary_cross_entropy(
    op: AtenBuilder, x: Value, target: Value, weight: Value | None = None, reduction: int = 1
) -> Value:
    loss = op.composite("BinaryCrossEntropy", *_pair(op, x, target))
    return reduced(op, loss if weight is None else loss * weight, reduction)


@aten("binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(
    op: AtenBuilder, x: Value, target: Value, weight: Value | None = None, pos_weight: Value | None = None,
    reduction: int = 1,
) -> Value:  # fmt: skip
    x, target = _pair(op, x, target)
    if pos_weight is None:
        loss = op.composite("SigmoidCrossEntropy", x, target)
    else:
        # −log σ(x) = Softplus(−x), which does not overflow and whose derivative at 0 is right.
        one = op.cast(1, op.dtype)
        term = op.Softplus(op.Neg(x)) * ((op.cast(pos_weight, op.dtype) - one) * target + one)
        loss = (one - target) * x + term
    return reduced(op, loss if weight is None else loss * op.cast(weight, op.dtype), reduction)


@aten("kl_div")
def kl_div(op: AtenBuilder, x: Value, target: Value, reduction: int = 1, *, log_target: bool = False) -> Value:
    x, target = op.cast(x, op.dtype), op.cast(target, op.dtype)
    if log_target:
        return reduced(op, op.Exp(target) * (target - x), reduction)
    return reduced(op, xlogy(op, target, target) - target * x, reduction)


@aten("cosine_similarity")
def cosine_similarity(op: AtenBuilder, a: Value, b: Value, dim: int = 1, eps: float = 1e-8) -> Value:
    def length(x: Value) -> Value:
        # What bounds a length has no part in the gradient, and a vector of zeros has none.
        norm = op.ReduceL2(x, [axis], keepdims=1)
        return norm + op.composite("Detach", op.Max(norm, op.cast(eps, x.dtype)) - norm)

    shapes = [list(op.input_shape(i)) for i in (0, 1)]
    rank = max(map(len, shapes))
    if not rank:
        a, b, shapes, rank = op.Unsqueeze(a, [0]), op.Unsqueeze(b, [0]), [[1], [1]], 1
    axis = dim - rank if dim >= 0 else dim
    wholes = [[*[1] * (-axis - len(shape)), *shape] for shape in shapes]
    size = wholes[1][axis] if wholes[0][axis] == 1 else wholes[0][axis]
    a, b = op.cast(a, op.dtype), op.cast(b, op.dtype)
    if any(whole[axis] != size for whole in wholes):  # a number stands for as many equal ones, whose length counts
        for whole in wholes:
            whole[axis] = size
        a, b = (op.expand(x, whole, shape) for x, whole, shape in zip((a, b), wholes, shapes, strict=True))
    return op.ReduceSum((a / length(a)) * (b / length(b)), [axis], keepdims=0)


@aten("ontrain::ctc")
def ctc(
    op: AtenBuilder, log_probs: Value, targets: Value, input_lengths: Value, target_lengths: Value, blank: int,
    zero_infinity: bool,
) -> Value:  # fmt: skip
    operands = log_probs, targets, input_lengths, target_lengths
    return op.composite("CTC", *operands, blank=int(blank), zero_infinity=int(zero_infinity))


@aten("ontrain::ctc_grad")
def ctc_grad(
    op: AtenBuilder, dloss: Value, log_probs: Value, targets: Value, input_lengths: Value, target_lengths: Value,
    blank: int, zero_infinity: bool,
) -> Value:  # fmt: skip
    operands = dloss, log_probs, targets, input_lengths, target_lengths
    return op.composite("CTCGrad", *operands, blank=int(blank), zero_infinity=int(zero_infinity))
