"""Classification losses, and losses of pairs of numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import onnx_ir as ir

from ontrain.operators.emit import Value
from ontrain.operators.gradients import Adjoints, Op, gradient
from ontrain.operators.record import DOMAIN, ELEMENTWISE, Precision, define

__all__ = ["NO_IGNORE"]

NO_IGNORE = -(2**31)
"""The value of `ignore_index` that ignores nothing."""


def _cross_entropy(node: ir.Node, shapes: Sequence[tuple[int, ...]]) -> Iterator[tuple[int, int]]:
    """Scores [N, C, …], labels [N, …], weights [C]."""
    scores, labels = shapes[:2]
    yield from zip((*scores[:1], *scores[2:]), labels, strict=False)
    if len(shapes) > 2 and shapes[2] and len(scores) > 1:
        yield scores[1], shapes[2][0]


define("NegativeLogLikelihoodLossGrad", domain=DOMAIN)
define("SoftmaxCrossEntropyLossGrad", domain=DOMAIN, overwrites=(1,))
_FIXED = "the class weights of a loss are constants to its gradient"


_REDUCTION = {"reduction": ("none", "mean", "sum")}
define("SoftmaxCrossEntropyLoss", labels=1, weightless=(1, 2), agreeing=_cross_entropy, choices=_REDUCTION)


@gradient("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy_loss(
    op: Op, dy: Value | None, scores: Value, labels: Value, weights: Value | None = None,
    *, reduction: str, ignore_index: int = NO_IGNORE,
) -> Adjoints:  # fmt: skip
    """The composite from the saved log-probabilities, and LogSoftmax's adjoint if they are used themselves."""
    if len(op.wanted) > 2 and op.wanted[2]:
        raise op.refused(_FIXED, "detach the weights")
    log_prob, dlog_prob = op.saved(1), op.dys[1] if len(op.dys) > 1 else None
    dscores = None
    if dy is not None:
        dscores = op.composite(
            "SoftmaxCrossEntropyLossGrad", dy, log_prob, labels, weights, reduction=reduction, ignore_index=ignore_index
        )
    if dlog_prob is not None:
        more = op.composite("LogSoftmaxGrad", dlog_prob, log_prob, axis=1)
        dscores = more if dscores is None else dscores + more
    return dscores, None, None


define("NegativeLogLikelihoodLoss", labels=1, weightless=(1, 2), agreeing=_cross_entropy, choices=_REDUCTION)


@gradient("NegativeLogLikelihoodLoss")
def negative_log_likelihood_loss(
    op: Op, dy: Value, log_prob: Value, labels: Value, weights: Value | None = None,
    *, reduction: str, ignore_index: int = NO_IGNORE,
) -> Adjoints:  # fmt: skip
    """The composite of the same name."""
    if len(op.wanted) > 2 and op.wanted[2]:
        raise op.refused(_FIXED, "detach the weights")
    dx = op.composite(
        "NegativeLogLikelihoodLossGrad", dy, log_prob, labels, weights, reduction=reduction, ignore_index=ignore_index
    )
    return dx, None, None


define("LinearCrossEntropy", labels=1, domain=DOMAIN, precision=Precision.SCALED)


@gradient("LinearCrossEntropy", domain=DOMAIN)
def linear_cross_entropy(
    op: Op, dy: Value | None, hidden: Value, labels: Value, weight: Value, bias: Value | None = None,
    **_: object,
) -> Any:  # fmt: skip
    """dy times the gradients that the operator makes itself; where those have adjoints too, through the body."""
    if dy is None or any(adjoint is not None for adjoint in op.dys[1:]):
        return NotImplemented
    wanted = (*op.wanted, False)
    gradients = {0: 1, 2: 2, 3: 3}
    return tuple(
        op.composite("ScaleGrad", op.saved(gradients[i]), dy) if i in gradients and wanted[i] else None
        for i in range(len(op.inputs))
    )


define("SquaredError", ELEMENTWISE, domain=DOMAIN)
define("SquaredErrorGrad", ELEMENTWISE, domain=DOMAIN)


@gradient("SquaredError", domain=DOMAIN)
def squared_error(op: Op, dy: Value, x: Value, target: Value) -> Adjoints:
    """The composite SquaredErrorGrad, and minus it."""
    dx = op.composite("SquaredErrorGrad", dy, x, target)
    return dx, op.Neg(dx) if op.wanted[1] else None


define("Huber", ELEMENTWISE, domain=DOMAIN)
define("HuberGrad", ELEMENTWISE, domain=DOMAIN)


@gradient("Huber", domain=DOMAIN)
def huber(op: Op, dy: Value, x: Value, target: Value, *, delta: float, unit_slope: int) -> Adjoints:
    """The composite HuberGrad, and minus it."""
    dx = op.composite("HuberGrad", dy, x, target, delta=delta, unit_slope=unit_slope)
    return dx, op.Neg(dx) if op.wanted[1] else None


define("SigmoidCrossEntropy", ELEMENTWISE, domain=DOMAIN)
define("SigmoidCrossEntropyGrad", ELEMENTWISE, domain=DOMAIN)


@gradient("SigmoidCrossEntropy", domain=DOMAIN)
def sigmoid_cross_entropy(op: Op, dy: Value, x: Value, target: Value) -> Adjoints:
    """The composite SigmoidCrossEntropyGrad, and −dy · x."""
    dtarget = op.Neg(dy * x) if op.wanted[1] else None
    return op.composite("SigmoidCrossEntropyGrad", dy, x, target) if op.wanted[0] else None, dtarget


define("BinaryCrossEntropy", ELEMENTWISE, domain=DOMAIN)
define("BinaryCrossEntropyGrad", ELEMENTWISE, domain=DOMAIN)


@gradient("BinaryCrossEntropy", domain=DOMAIN)
def binary_cross_entropy(op: Op, dy: Value, x: Value, target: Value) -> Adjoints:
    """The composite BinaryCrossEntropyGrad, and dy · (log(1 − x) − log x), which torch does not bound either."""
    dtarget = dy * (op.Log(1.0 - x) - op.Log(x)) if op.wanted[1] else None
    return op.composite("BinaryCrossEntropyGrad", dy, x, target) if op.wanted[0] else None, dtarget


define("CTC", domain=DOMAIN, asks_device=True)
define("CTCGrad", domain=DOMAIN, asks_device=True)


@gradient("CTC", domain=DOMAIN)
def ctc(
    op: Op, dy: Value, log_probs: Value, targets: Value, input_lengths: Value, target_lengths: Value,
    *, blank: int, zero_infinity: int,
) -> Adjoints:  # fmt: skip
    """The composite CTCGrad."""
    dx = op.composite(
        "CTCGrad", dy, log_probs, targets, input_lengths, target_lengths, blank=blank, zero_infinity=zero_infinity
    )
    return dx, None, None, None
