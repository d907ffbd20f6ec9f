"""Connectionist temporal classification: torch's own kernel cannot be traced without data."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

__all__ = ["ctc_loss"]


def ctc_loss(
    log_probs: torch.Tensor, targets: torch.Tensor, input_lengths: Any, target_lengths: Any, blank: int = 0,
    reduction: int = 1, zero_infinity: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Return what `torch.ctc_loss` does, as one operator and a mean or sum of its results.

    Args:
        log_probs: [T, N, C], or [T, C] for one sequence.
        targets: int [N, S], or [S] for one sequence; or those of all sequences in one row.
        input_lengths, target_lengths: [N] each, tensors or numbers.
        blank: the class that is no label.
        reduction: 0 for none, 1 for the mean over sequences of loss over target length, 2 for the sum.
        zero_infinity: give impossible alignments no loss, instead of an infinite one.
    """
    single = log_probs.ndim == 2
    if single:
        log_probs, targets = log_probs.unsqueeze(1), targets.unsqueeze(0)
    elif targets.ndim == 1:
        targets = _in_rows(targets, target_lengths, blank)
    device = log_probs.device
    lengths, sizes = (_vector(value, device) for value in (input_lengths, target_lengths))
    loss: torch.Tensor = _ctc(log_probs, targets.long(), lengths, sizes, blank, zero_infinity)
    if reduction == 0:
        return loss.squeeze(0) if single else loss
    return loss.sum() if reduction == 2 else (loss / sizes.clamp(min=1)).mean()


@torch.library.custom_op("ontrain::ctc", mutates_args=())
def _ctc(
    log_probs: torch.Tensor, targets: torch.Tensor, input_lengths: torch.Tensor, target_lengths: torch.Tensor,
    blank: int, zero_infinity: bool,
) -> torch.Tensor:  # fmt: skip
    """What stands in a trace for the kernel: its results would be as many as the numbers in its operands say."""
    return functional.ctc_loss(log_probs, targets, input_lengths, target_lengths, blank, "none", zero_infinity)


@_ctc.register_fake
def _(
    log_probs: torch.Tensor, targets: torch.Tensor, input_lengths: torch.Tensor, target_lengths: torch.Tensor,
    blank: int, zero_infinity: bool,
) -> torch.Tensor:  # fmt: skip
    return log_probs.new_empty(log_probs.shape[1])


@torch.library.custom_op("ontrain::ctc_grad", mutates_args=())
def _ctc_grad(
    dloss: torch.Tensor, log_probs: torch.Tensor, targets: torch.Tensor, input_lengths: torch.Tensor,
    target_lengths: torch.Tensor, blank: int, zero_infinity: bool,
) -> torch.Tensor:  # fmt: skip
    """The adjoint of log_probs, for a forward that asks for it."""
    log_probs = log_probs.detach().requires_grad_()
    with torch.enable_grad():
        loss = functional.ctc_loss(
            log_probs, targets, input_lengths, target_lengths, blank, "none", zero_infinity
        )  # fmt: skip
    (gradient,) = torch.autograd.grad(loss, log_probs, dloss)
    return gradient


@_ctc_grad.register_fake
def _(
    dloss: torch.Tensor, log_probs: torch.Tensor, targets: torch.Tensor, input_lengths: torch.Tensor,
    target_lengths: torch.Tensor, blank: int, zero_infinity: bool,
) -> torch.Tensor:  # fmt: skip
    return torch.empty_like(log_probs)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs[:4])
    ctx.options = inputs[4:]


def _backward(ctx: Any, dloss: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    return _ctc_grad(dloss, *ctx.saved_tensors, *ctx.options), *[None] * 5


_ctc.register_autograd(_backward, setup_context=_remember)


def _in_rows(targets: torch.Tensor, target_lengths: Any, blank: int) -> torch.Tensor:
    """A row for each sequence, filled up with blanks; as long as all together where no number says the longest."""
    sizes = _vector(target_lengths, targets.device)
    longest = targets.shape[0] if isinstance(target_lengths, torch.Tensor) else max(target_lengths, default=0)
    places = torch.arange(longest, device=targets.device)
    begins = sizes.cumsum(0) - sizes
    filled = functional.pad(targets, (0, 1), value=blank)
    own = torch.where(places < sizes[:, None], begins[:, None] + places, targets.shape[0])
    return filled[own]


def _vector(lengths: Any, device: torch.device) -> torch.Tensor:
    tensor = lengths if isinstance(lengths, torch.Tensor) else torch.tensor(lengths, device="cpu")
    return tensor.to(device=device, dtype=torch.int64).reshape(-1)
