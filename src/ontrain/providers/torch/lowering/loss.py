"""Classification losses and their gradients: on rows of classes, or on a plane for each class."""

from __future__ import annotations

import onnx_ir as ir
import torch

from ontrain.internals import private
from ontrain.operators import NO_IGNORE
from ontrain.providers.torch.buffers import Buf
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.registry import attributes, lowers, lowers_composite

__all__: list[str] = []

aten = torch.ops.aten
_REDUCTION = {"none": 0, "mean": 1, "sum": 2}


def _in_planes(e: Emitter, x: Buf) -> bool:
    """Whether each class of [N, C, …] has a plane of its own, so that a row of classes would be a copy.

    A GPU has such kernels, too, and adds up in any order there.
    """
    return len(x.shape) > 2 and e.device.type == "cpu" and 0 not in x.shape and x.meta.is_contiguous()


def _flat(e: Emitter, x: Buf) -> Buf:
    """[N, C, …] as [rows, C], or in planes as [N, C, places, 1]."""
    if len(x.shape) == 2:
        return x
    if _in_planes(e, x):
        return e.view(x, lambda t: t.view(*t.shape[:2], -1, 1))
    return e.reshape(e.view(x, lambda t: t.movedim(1, -1)), (-1, x.shape[1]))


def _unflat(e: Emitter, flat: Buf, like: tuple[int, ...]) -> Buf:
    """The inverse of `_flat` as a view."""
    if len(like) == 2:
        return flat
    if len(flat.shape) == 4:
        return e.view(flat, lambda t: t.view(like))
    return e.view(flat, lambda t: t.view(like[0], *like[2:], like[1]).movedim(-1, 1))


def _labels(e: Emitter, labels: Buf, log_prob: Buf) -> Buf:
    """Labels as int64, of each row or place."""
    flat = e.reshape(labels, (-1,) if len(log_prob.shape) == 2 else (log_prob.shape[0], -1, 1))
    return e.cast(flat, torch.int64) if flat.dtype != torch.int64 else flat


def _loss(e: Emitter, node: ir.Node, log_prob: Buf) -> None:
    a = attributes(node)
    labels = _labels(e, e.value(node.inputs[1]), log_prob)
    weight = e.optional(node, 2)
    reduction = _REDUCTION[a.get("reduction", "mean")]
    out = e.out(node.outputs[0])
    target = e.view(out, lambda t: t.view(labels.shape)) if reduction == 0 else out
    total = e.new((), log_prob.dtype)
    kernel = aten.nll_loss_forward if len(log_prob.shape) == 2 else aten.nll_loss2d_forward
    e.run(
        kernel.output, log_prob, labels, weight, reduction, a.get("ignore_index", NO_IGNORE),
        output=target, total_weight=total, writes=[target, total],
    )  # fmt: skip
    if len(node.outputs) > 1:
        e.keep(node.outputs[1], total)


@lowers("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy_loss(e: Emitter, node: ir.Node) -> None:
    scores = e.value(node.inputs[0])
    flat = _flat(e, scores)
    log_prob = e.new(flat.shape, flat.dtype)
    if len(node.outputs) > 1 and len(scores.shape) == 2:
        log_prob = e.out(node.outputs[1])
    e.call(torch.log_softmax, flat, 1, out=log_prob)
    e.program[-1].reuses = [flat]
    if len(node.outputs) > 1 and len(scores.shape) != 2:
        e.bind(node.outputs[1], _unflat(e, log_prob, scores.shape))
    _loss(e, node, log_prob)


@lowers("NegativeLogLikelihoodLoss")
def negative_log_likelihood_loss(e: Emitter, node: ir.Node) -> None:
    _loss(e, node, _flat(e, e.value(node.inputs[0])))


@lowers_composite("SoftmaxCrossEntropyLossGrad", "NegativeLogLikelihoodLossGrad")
def loss_grad(e: Emitter, node: ir.Node) -> None:
    dloss, scores, labels = (e.value(v) for v in node.inputs[:3])
    weight = e.optional(node, 3)
    a = attributes(node)
    reduction, ignore = _REDUCTION[a.get("reduction", "mean")], a.get("ignore_index", NO_IGNORE)
    log_prob = _flat(e, scores)
    labels = _labels(e, labels, log_prob)
    with_softmax = node.op_type == "SoftmaxCrossEntropyLossGrad"
    rows = len(scores.shape) == 2
    out = e.out(node.outputs[0]) if rows else e.new(log_prob.shape, log_prob.dtype)
    picked = e.new(log_prob.shape, log_prob.dtype) if with_softmax else out
    kernel = aten.nll_loss_backward if len(log_prob.shape) == 2 else aten.nll_loss2d_backward
    e.run(  # fills what it does not pick with zeros itself
        kernel.grad_input, e.reshape(dloss, labels.shape if reduction == 0 else ()), log_prob, labels, weight,
        reduction, ignore, _total_weight(e, node, labels, weight, ignore, log_prob.dtype), grad_input=picked,
        writes=[picked],
    )  # fmt: skip
    if with_softmax:
        # The kernel reads a row of log_prob before it writes it: where log_prob dies, its memory is the result's.
        e.run(
            private("torch.ops.aten._log_softmax_backward_data").out,
            picked,
            log_prob,
            1,
            log_prob.dtype,
            out=out,
            writes=[out],
        )
        e.program[-1].reuses = [log_prob]
    if not rows:
        e.bind(node.outputs[0], _unflat(e, out, scores.shape))


def _total_weight(e: Emitter, node: ir.Node, labels: Buf, weight: Buf | None, ignore: int, dtype: torch.dtype) -> Buf:
    """What a mean divides by: kept by the forward loss, else counted again."""
    saved = e.kept(node.inputs[1])
    if saved is not None and saved[0] is not None:
        return saved[0]
    total = e.new((), dtype)

    def count(out: torch.Tensor, labels: torch.Tensor, weight: torch.Tensor | None) -> None:
        valid = labels != ignore
        rows = valid if weight is None else torch.where(valid, weight[torch.where(valid, labels, 0)], 0)
        out.copy_(rows.sum())

    e.run(count, total, labels, weight, writes=[total])
    return total
