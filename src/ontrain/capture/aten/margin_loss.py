"""Losses that keep a margin between scores."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.capture.aten.arithmetic import difference, not_negative
from ontrain.capture.aten.loss import reduced
from ontrain.capture.aten.places import from_start
from ontrain.capture.aten.reduction import length
from ontrain.capture.aten.registry import aten
from ontrain.capture.context import AtenBuilder
from ontrain.operators import Value
from ontrain.sizes import Size

__all__: list[str] = []


@aten("margin_ranking_loss")
def margin_ranking_loss(
    op: AtenBuilder, a: Value, b: Value, target: Value, margin: float = 0.0, reduction: int = 1
) -> Value:
    apart = op.cast(difference(op, a, b), op.dtype)
    raw = op.Neg(op.cast(target, op.dtype)) * apart + op.cast(margin, op.dtype)
    return reduced(op, not_negative(op, raw), reduction)


@aten("triplet_margin_loss")
def triplet_margin_loss(
    op: AtenBuilder, anchor: Value, positive: Value, negative: Value, margin: float = 1.0, p: float = 2.0,
    eps: float = 1e-6, swap: bool = False, reduction: int = 1,
) -> Value:  # fmt: skip
    def distance(a: Value, b: Value, places: tuple[int, int]) -> Value:
        return length(op, op.cast(difference(op, a, b, places), op.dtype) + op.cast(eps, op.dtype), p, [-1], False)

    far = distance(anchor, negative, (0, 2))
    if swap:
        far = op.Min(far, distance(positive, negative, (1, 2)))
    raw = distance(anchor, positive, (0, 1)) - far + op.cast(margin, op.dtype)
    return reduced(op, not_negative(op, raw), reduction)


@aten("multi_margin_loss")
def multi_margin_loss(
    op: AtenBuilder, x: Value, target: Value, p: float = 1, margin: float = 1, weight: Value | None = None,
    reduction: int = 1,
) -> Value:  # fmt: skip
    """The mean over classes c of w_t · max(0, margin − x_t + x_c)ᵖ, without c = t and without what is NaN."""
    single = len(op.input_shape(0)) < 2
    x, target = (op.Reshape(x, [1, -1]), op.Reshape(target, [1])) if single else (x, target)
    classes, places = _classes(op)
    target = op.Unsqueeze(from_start(op, target), [1])
    apart = op.cast(margin, x.dtype) - op.GatherElements(x, target, axis=1) + x
    exceeds, zero = (
        op.And(op.Greater(apart, op.cast(0, x.dtype)), op.Not(op.Equal(places, target))),
        op.cast(0, x.dtype),
    )
    term = op.Where(exceeds, apart, zero)
    term = term if p == 1 else term * term
    if weight is not None:
        term = op.Where(exceeds, term * op.Gather(weight, target, axis=0), zero)
    return _of_rows(op, op.ReduceSum(term, [1], keepdims=0) / classes, single, reduction)


@aten("multilabel_margin_loss")
def multilabel_margin_loss(op: AtenBuilder, x: Value, target: Value, reduction: int = 1) -> Value:
    """The sum over labels t and classes c that are no label of max(0, 1 − x_t + x_c), over the number of classes.

    A row's labels end before its first −1. torch's own decomposition goes on behind it.
    """
    single = len(op.input_shape(0)) < 2
    x, target = (op.Reshape(x, [1, -1]), op.Reshape(target, [1, -1])) if single else (x, target)
    classes, places = _classes(op)
    ends = op.Cast(op.Less(target, op.cast(0, target.dtype)), to=ir.DataType.INT64)
    counts = op.Equal(op.CumSum(ends, 1), 0)
    # What is below −1 is no end; it is looked up to be refused.
    looked_up = op.Or(counts, op.Less(target, op.cast(-1, target.dtype)))
    target = from_start(op, op.Where(looked_up, target, op.cast(0, target.dtype)))
    same = op.And(op.Equal(op.Unsqueeze(target, [2]), places), op.Unsqueeze(counts, [2]))
    is_label = op.Greater(op.ReduceMax(op.Cast(same, to=ir.DataType.INT64), [1], keepdims=1), 0)
    apart = op.cast(1, x.dtype) - op.Unsqueeze(op.GatherElements(x, target, axis=1), [2]) + op.Unsqueeze(x, [1])
    exceeds = op.And(op.Greater(apart, op.cast(0, x.dtype)), op.And(op.Unsqueeze(counts, [2]), op.Not(is_label)))
    term = op.Where(exceeds, apart, op.cast(0, x.dtype))
    return _of_rows(op, op.ReduceSum(term, [1, 2], keepdims=0) / classes, single, reduction)


@aten("multilabel_margin_loss_forward")
def multilabel_margin_loss_forward(op: AtenBuilder, x: Value, target: Value, reduction: int) -> tuple[Value, None]:
    return multilabel_margin_loss(op, x, target, reduction), None


def _classes(op: AtenBuilder) -> tuple[Value, Any]:
    """How many scores a row has, in their dtype, and 0, 1, … below that."""
    size = op.input_shape(0)[-1] if op.input_shape(0) else 1
    places = op.counted(size) if isinstance(size, Size) else np.arange(size)
    return op.cast(size, op.dtype), places


def _of_rows(op: AtenBuilder, loss: Value, single: bool, reduction: int) -> Value:
    if not single:
        return reduced(op, loss, reduction)
    if op.val.ndim:
        raise op.refuse(
            "a margin loss of one row of scores that is not reduced",
            "torch runs it to a number and traces it to a row of one",
            'use reduction="mean"',
        )
    return op.Squeeze(loss, [0])
