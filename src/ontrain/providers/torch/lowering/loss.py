"""Classification losses and their gradients, on rows."""

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


def _rows(e: Emitter, x: Buf) -> Buf:
    """[N, C, …] as [rows, C]."""
    if len(x.shape) == 2:
        return x
    return e.reshape(e.view(x, lambda t: t.movedim(1, -1)), (-1, x.shape[1]))


def _unrows(e: Emitter, rows: Buf, like: tuple[int, ...]) -> Buf:
    """The inverse of `_rows` as a view."""
    if len(like) == 2:
        return rows
    return e.view(rows, lambda t: t.view(like[0], *like[2:], like[1]).movedim(-1, 1))


def _loss(e: Emitter, node: ir.Node, log_prob: Buf) -> None:
    a = attributes(node)
    labels = e.reshape(e.value(node.inputs[1]), (-1,))
    weight = e.value(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] is not None else None
    labels = e.cast(labels, torch.int64) if labels.dtype != torch.int64 else labels
    reduction = _REDUCTION[a.get("reduction", "mean")]
    out = e.out(node.outputs[0])
    target = e.view(out, lambda t: t.view(-1)) if reduction == 0 else out
    total = e.new((), log_prob.dtype)
    e.run(
        aten.nll_loss_forward.output, log_prob, labels, weight, reduction, a.get("ignore_index", NO_IGNORE),
        output=target, total_weight=total, writes=[target, total],
    )  # fmt: skip
    if len(node.outputs) > 1:
        e.keep(node.outputs[1], total)


@lowers("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy_loss(e: Emitter, node: ir.Node) -> None:
    scores = e.value(node.inputs[0])
    rows = _rows(e, scores)
    log_prob = e.new(rows.shape, rows.dtype)
    if len(node.outputs) > 1 and len(scores.shape) == 2:
        log_prob = e.out(node.outputs[1])
    e.call(torch.log_softmax, rows, 1, out=log_prob)
    e.program[-1].reuses = [rows]
    if len(node.outputs) > 1 and len(scores.shape) != 2:
        e.bind(node.outputs[1], _unrows(e, log_prob, scores.shape))
    _loss(e, node, log_prob)


@lowers("NegativeLogLikelihoodLoss")
def negative_log_likelihood_loss(e: Emitter, node: ir.Node) -> None:
    _loss(e, node, _rows(e, e.value(node.inputs[0])))


@lowers_composite("SoftmaxCrossEntropyLossGrad", "NegativeLogLikelihoodLossGrad")
def loss_grad(e: Emitter, node: ir.Node) -> None:
    dloss, scores, labels = (e.value(v) for v in node.inputs[:3])
    weight = e.value(node.inputs[3]) if len(node.inputs) > 3 and node.inputs[3] is not None else None
    a = attributes(node)
    reduction, ignore = _REDUCTION[a.get("reduction", "mean")], a.get("ignore_index", NO_IGNORE)
    log_prob, labels = _rows(e, scores), e.reshape(labels, (-1,))
    labels = e.cast(labels, torch.int64) if labels.dtype != torch.int64 else labels
    with_softmax = node.op_type == "SoftmaxCrossEntropyLossGrad"
    flat = len(scores.shape) == 2
    out = e.out(node.outputs[0]) if flat else e.new(log_prob.shape, log_prob.dtype)
    picked = e.new(log_prob.shape, log_prob.dtype) if with_softmax else out
    e.run(  # fills what it does not pick with zeros itself
        aten.nll_loss_backward.grad_input, e.reshape(dloss, (-1,) if reduction == 0 else ()), log_prob, labels, weight,
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
    if not flat:
        e.bind(node.outputs[0], _unrows(e, out, scores.shape))


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
