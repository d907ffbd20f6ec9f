"""Losses over alignments by ATen's kernels. They take lengths as numbers, so a device is waited for."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import torch

from ontrain.internals import private
from ontrain.operators import static_dims
from ontrain.providers.torch.buffers import Buf
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.registry import attributes, lowers_composite

__all__: list[str] = []


def _aligns(node: ir.Node) -> bool:
    """Whether ATen does: it asks for a time and a label. A node without inputs stands for the operator as such."""
    first = 1 if node.op_type == "CTCGrad" else 0
    operands = node.inputs[first : first + 2]
    return all(v is not None and 0 not in static_dims(v) for v in operands)


@lowers_composite("CTC", when=_aligns)
def ctc(e: Emitter, node: ir.Node) -> None:
    operands, a = [e.value(v) for v in node.inputs], attributes(node)
    log_probs, targets = operands[:2]
    out, own = e.out(node.outputs[0]), e.new((log_probs.shape[1],), log_probs.dtype)
    # As many sums over alignments as the longest target says; the plan has room for the longest that there may be.
    sums = e.new((log_probs.shape[1], log_probs.shape[0], 2 * targets.shape[1] + 1), log_probs.dtype)
    zero_infinity = bool(a.get("zero_infinity", 0))
    e.run(_loss, out, own, sums, *operands, a.get("blank", 0), zero_infinity, writes=[out, own, sums])
    e.keep(node.outputs[0], own, sums, kernel=_ALIGNMENTS)


@lowers_composite("CTCGrad", when=_aligns)
def ctc_grad(e: Emitter, node: ir.Node) -> None:
    operands, a = [e.value(v) for v in node.inputs], attributes(node)
    stored = _alignments(e, node) or (None, None)
    e.compute(
        _gradient, *operands, a.get("blank", 0), bool(a.get("zero_infinity", 0)), *stored,
        outs=[e.out(node.outputs[0])], fresh=True,
    )  # fmt: skip


_ALIGNMENTS = object()
"""Tells losses and sums of alignments from what other kernels keep."""


def _alignments(e: Emitter, node: ir.Node) -> tuple[Buf | None, ...] | None:
    """Losses and sums over alignments from the forward's loss of the same operands, where it ran in this program."""
    operands, blank = list(node.inputs[1:]), attributes(node).get("blank", 0)
    for forward in operands[0].consumers() if operands[0] is not None else ():
        stored = e.kept(forward.outputs[0])
        alike = list(forward.inputs) == operands and attributes(forward).get("blank", 0) == blank
        if alike and stored is not None and e.kernel_of(forward.outputs[0]) is _ALIGNMENTS:
            return stored
    return None


def _loss(out: torch.Tensor, own: torch.Tensor, sums: torch.Tensor, log_probs: torch.Tensor, *rest: Any) -> None:
    _check_labels(rest[0], rest[2], log_probs.shape[2])
    loss, alpha = private("torch.ops.aten._ctc_loss")(log_probs, *rest)
    own.copy_(loss)
    sums[..., : alpha.shape[2]].copy_(alpha)
    out.copy_(loss.masked_fill_(loss.isinf(), 0.0) if rest[-1] else loss)


def _check_labels(targets: torch.Tensor, lengths: torch.Tensor, classes: int) -> None:
    """Refuse a label that is no class: the kernel would read what lies beside the scores."""
    counts = torch.arange(targets.shape[1], device=targets.device) < lengths[:, None]
    wrong = targets[counts & ((targets < 0) | (targets >= classes))]
    if len(wrong):
        raise IndexError(f"index {int(wrong[0])} is out of range: there are {classes} classes of labels")


def _gradient(
    dloss: torch.Tensor, log_probs: torch.Tensor, targets: torch.Tensor, lengths: torch.Tensor,
    target_lengths: torch.Tensor, blank: int, zero_infinity: bool, loss: torch.Tensor | None,
    sums: torch.Tensor | None,
) -> torch.Tensor:  # fmt: skip
    operands = log_probs, targets, lengths, target_lengths
    if loss is None or sums is None:
        loss, sums = private("torch.ops.aten._ctc_loss")(*operands, blank, zero_infinity)
    kernel = private("torch.ops.aten._ctc_loss_backward")
    gradient: torch.Tensor = kernel(dloss, *operands, loss, sums, blank, zero_infinity)
    return gradient
