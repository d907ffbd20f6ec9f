"""Losses over all alignments of a sequence and its labels, and their gradients.

Bodies are unrolled over time, whose length a plan knows. Logarithms of zero are a finite low number inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ontrain.functions.registry import composite
from ontrain.graph import Builder
from ontrain.operators import Value, static_dims

__all__: list[str] = []


def _low(dtype: ir.DataType | None) -> float:
    return -3e4 if dtype == ir.DataType.FLOAT16 else -1e30


def _losses(inputs: Sequence[ir.Value], **_: object) -> list[tuple[ir.DataType, ir.Shape]]:
    log_probs = inputs[0]
    assert log_probs.dtype is not None and log_probs.shape is not None
    return [(log_probs.dtype, ir.Shape([list(log_probs.shape)[1]]))]


@dataclass
class _Paths:
    """Places of an alignment: blanks before, between and behind the labels.

    Attributes:
        places: number of each, [1, 2S + 1].
        labels: classes, int64 [N, 2S + 1].
        skips: whether a step of two leads there, over the blank between different labels, bool [N, 2S + 1].
        last: the last place, int64 [N, 1].
        emitted: log-probabilities of the classes, for each time [N, 2S + 1].
    """

    places: Value
    labels: Value
    skips: Value
    last: Value
    emitted: list[Value]


@composite("CTC", infer=_losses)
def ctc(
    op: Builder, log_probs: Value, targets: Value, input_lengths: Value, target_lengths: Value,
    *, blank: int = 0, zero_infinity: int = 0,
) -> Value:  # fmt: skip
    """−log of the probability that a sequence is its labels with blanks and repetitions in between, [N].

    Of log_probs [T, N, C] count the first input_lengths [N], of the labels targets [N, S] the first target_lengths [N],
    all int64. Labels that do not fit have an infinite loss, or with `zero_infinity` none.
    Source: torch.ctc_loss with reduction "none"; Graves et al. 2006.
    """
    paths = _paths(op, log_probs, targets, target_lengths, blank)
    loss = _loss(op, paths, _alphas(op, paths, input_lengths)[-1])
    nothing = op.Where(op.Equal(target_lengths, 0), op.const(0.0, loss.dtype), op.const(np.inf, loss.dtype))
    loss = op.Where(op.Equal(input_lengths, 0), nothing, loss)
    return op.Where(op.IsInf(loss), op.const(0.0, loss.dtype), loss) if zero_infinity else loss


@composite("CTCGrad", like=[1])
def ctc_grad(
    op: Builder, dloss: Value, log_probs: Value, targets: Value, input_lengths: Value, target_lengths: Value,
    *, blank: int = 0, zero_infinity: int = 0,
) -> Value:  # fmt: skip
    """dloss [N] · (probability of a class − share of the alignments that have it there), zero behind a sequence's end.

    As torch's kernel has it, log_probs count as the result of log_softmax: its adjoint leaves this as it is.
    Where no alignment is possible it is no number, or with `zero_infinity` zero.
    """
    paths = _paths(op, log_probs, targets, target_lengths, blank)
    alphas = _alphas(op, paths, input_lengths)
    loss = op.Unsqueeze(_loss(op, paths, alphas[-1]), [1])
    impossible = op.IsInf(loss)
    finite = op.Where(impossible, op.const(0.0, loss.dtype), loss)
    betas = _betas(op, paths, input_lengths)
    _, count, classes = static_dims(log_probs)
    zeros, one = op.Expand(op.const(0.0, log_probs.dtype), [count, classes]), op.Unsqueeze(dloss, [1])
    unknown = op.const(0.0 if zero_infinity else np.nan, log_probs.dtype)
    gradients = []
    for t, (scores, alpha, beta) in enumerate(zip(_times(op, log_probs), alphas, betas, strict=True)):
        share = op.ScatterElements(zeros, paths.labels, op.Exp(alpha + beta + finite), axis=1, reduction="add")
        gradient = op.Where(impossible, unknown, (op.Exp(scores) - share) * one)
        inside = op.Unsqueeze(op.Less(op.const(t, ir.DataType.INT64), input_lengths), [1])
        gradients.append(op.Unsqueeze(op.Where(inside, gradient, op.const(0.0, log_probs.dtype)), [0]))
    return op.Concat(*gradients, axis=0)


def _paths(op: Builder, log_probs: Value, targets: Value, target_lengths: Value, blank: int) -> _Paths:
    (time, count, classes), (_, most) = static_dims(log_probs), static_dims(targets)
    # What stands behind a sequence's labels is anything.
    targets = op.Max(op.Min(targets, np.int64(classes - 1)), np.int64(0))
    blanks = op.Expand(op.const(blank, ir.DataType.INT64), [count, most, 1])
    pairs = op.Reshape(op.Concat(blanks, op.Unsqueeze(targets, [2]), axis=2), [count, 2 * most])
    labels = op.Concat(pairs, op.Expand(op.const(blank, ir.DataType.INT64), [count, 1]), axis=1)
    places = op.const(np.arange(2 * most + 1)[None])
    before = _moved(op, labels, 2, blank)
    differs = op.And(op.Not(op.Equal(labels, np.int64(blank))), op.Not(op.Equal(labels, before)))
    skips = op.And(op.Greater(places, np.int64(1)), differs)
    emitted = op.GatherElements(
        log_probs, op.Expand(op.Unsqueeze(labels, [0]), [time, count, 2 * most + 1]), axis=2
    )  # fmt: skip
    last = op.Unsqueeze(target_lengths * np.int64(2), [1])
    return _Paths(places, labels, skips, last, _times(op, emitted))


def _times(op: Builder, x: Value) -> list[Value]:
    """[N, …] for each time of [T, N, …]."""
    return [op.Squeeze(op.Slice(x, [t], [t + 1], [0]), [0]) for t in range(static_dims(x)[0])]


def _moved(op: Builder, x: Value, step: int, fill: float) -> Value:
    """[N, P] moved to later places, or with a negative step to earlier ones."""
    count, places = static_dims(x)
    step = max(-places, min(step, places))
    filled = op.Expand(op.const(fill, x.dtype), [count, abs(step)])
    if step < 0:
        return op.Concat(op.Slice(x, [-step], [places], [1]), filled, axis=1)
    return op.Concat(filled, op.Slice(x, [0], [places - step], [1]), axis=1)


def _sum(op: Builder, terms: Sequence[Value]) -> Value:
    """The logarithm of the sum of exponentials."""
    highest = op.Max(*terms)
    total = None
    for term in terms:
        exponential = op.Exp(term - highest)
        total = exponential if total is None else total + exponential
    return op.Max(highest + op.Log(total), op.const(_low(highest.dtype), highest.dtype))


def _alphas(op: Builder, paths: _Paths, lengths: Value) -> list[Value]:
    """Logarithms of sums over all ways to a place, for each time, its own emission included."""
    least = _low(paths.emitted[0].dtype)
    low = op.const(least, paths.emitted[0].dtype)
    alphas = [op.Where(op.Less(paths.places, np.int64(2)), paths.emitted[0], low)]
    for t, emitted in enumerate(paths.emitted[1:], 1):
        alpha = alphas[-1]
        over = op.Where(paths.skips, _moved(op, alpha, 2, least), low)
        new = op.Max(_sum(op, [alpha, _moved(op, alpha, 1, least), over]) + emitted, low)
        alphas.append(op.Where(_inside(op, t, lengths), new, alpha))
    return alphas


def _betas(op: Builder, paths: _Paths, lengths: Value) -> list[Value]:
    """Logarithms of sums over all ways from a place to the end, for each time, its own emission left out."""
    least = _low(paths.emitted[0].dtype)
    low, zero = (op.const(value, paths.emitted[0].dtype) for value in (least, 0.0))
    ends = op.Or(
        op.Equal(paths.places, paths.last),
        op.And(op.Equal(paths.places, paths.last - np.int64(1)), op.Greater(paths.last, np.int64(0))),
    )
    end = op.Where(ends, zero, low)
    # The place two further on says whether it may be skipped to.
    skips = op.Greater(_moved(op, op.Cast(paths.skips, to=ir.DataType.INT64), -2, 0), np.int64(0))
    betas = [end]
    for t in range(len(paths.emitted) - 2, -1, -1):
        after = op.Max(betas[-1] + paths.emitted[t + 1], low)
        over = op.Where(skips, _moved(op, after, -2, least), low)
        onward = _sum(op, [after, _moved(op, after, -1, least), over])
        betas.append(op.Where(_inside(op, t + 1, lengths), onward, end))
    return betas[::-1]


def _inside(op: Builder, t: int, lengths: Value) -> Value:
    inside: Value = op.Unsqueeze(op.Less(op.const(t, ir.DataType.INT64), lengths), [1])
    return inside


def _loss(op: Builder, paths: _Paths, alpha: Value) -> Value:
    least = _low(alpha.dtype)
    low = op.const(least, alpha.dtype)
    before = op.GatherElements(alpha, op.Max(paths.last - np.int64(1), np.int64(0)), axis=1)
    inner = op.Where(op.Greater(paths.last, np.int64(0)), before, low)
    loss = op.Squeeze(op.Neg(_sum(op, [op.GatherElements(alpha, paths.last, axis=1), inner])), [1])
    infinite = op.const(np.inf, alpha.dtype)
    return op.Where(op.Greater(loss, op.const(-least / 2, alpha.dtype)), infinite, loss)
