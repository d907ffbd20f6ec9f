"""Losses over alignments by ATen's kernels. They take lengths as numbers, so a device is waited for."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import torch

from ontrain.internals import private
from ontrain.operators import static_dims
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
    e.compute(
        _loss, *operands, a.get("blank", 0), bool(a.get("zero_infinity", 0)), outs=[e.out(node.outputs[0])], fresh=True
    )


@lowers_composite("CTCGrad", when=_aligns)
def ctc_grad(e: Emitter, node: ir.Node) -> None:
    operands, a = [e.value(v) for v in node.inputs], attributes(node)
    e.compute(
        _gradient, *operands, a.get("blank", 0), bool(a.get("zero_infinity", 0)), outs=[e.out(node.outputs[0])],
        fresh=True,
    )  # fmt: skip


def _loss(log_probs: torch.Tensor, *rest: Any) -> torch.Tensor:
    _check_labels(rest[0], rest[2], log_probs.shape[2])
    loss, _ = private("torch.ops.aten._ctc_loss")(log_probs, *rest)
    assert isinstance(loss, torch.Tensor)
    return loss.masked_fill_(loss.isinf(), 0.0) if rest[-1] else loss


def _check_labels(targets: torch.Tensor, lengths: torch.Tensor, classes: int) -> None:
    """Refuse a label that is no class: the kernel would read what lies beside the scores."""
    counts = torch.arange(targets.shape[1], device=targets.device) < lengths[:, None]
    wrong = targets[counts & ((targets < 0) | (targets >= classes))]
    if len(wrong):
        raise IndexError(f"index {int(wrong[0])} is out of range: there are {classes} classes of labels")


def _gradient(dloss: torch.Tensor, *operands: Any) -> torch.Tensor:
    # The sums over alignments are as many as the longest target says, so they have no place in a plan.
    loss, alpha = private("torch.ops.aten._ctc_loss")(*operands)
    kernel = private("torch.ops.aten._ctc_loss_backward")
    gradient: torch.Tensor = kernel(dloss, *operands[:4], loss, alpha, *operands[4:])
    return gradient
