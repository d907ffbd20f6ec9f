"""Connectionist temporal classification in tensor operators: torch's own kernel cannot be traced without data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

__all__ = ["ctc_loss"]

_LOW = -1e30
"""A finite stand-in for the logarithm of zero."""


def ctc_loss(
    log_probs: torch.Tensor, targets: torch.Tensor, input_lengths: Any, target_lengths: Any, blank: int = 0,
    reduction: int = 1, zero_infinity: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Return what `torch.ctc_loss` does, by the forward recursion of Graves et al. (2006), unrolled over time.

    The gradient is that of torch's kernel, which takes log-probabilities for those that log_softmax made.

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
    # Blanks before, between and behind the labels: [N, 2S + 1].
    labels = functional.pad(
        torch.stack([torch.full_like(targets, blank), targets], -1).flatten(1), (0, 1), value=blank
    ).long()
    places = torch.arange(labels.shape[1], device=device)
    # A step of two skips the blank between different labels.
    skips = (
        (places > 1) & (labels != blank) & (labels != functional.pad(labels, (2, 0), value=blank)[:, : labels.shape[1]])
    )
    emitted = log_probs.gather(2, labels.expand(log_probs.shape[0], -1, -1))
    alpha = torch.where(places < 2, emitted[0], _LOW)
    for t in range(1, log_probs.shape[0]):
        shifted = functional.pad(alpha, (1, 0), value=_LOW)[:, :-1]
        two = torch.where(skips, functional.pad(alpha, (2, 0), value=_LOW)[:, :-2], _LOW)
        new = (_sum_of_exponentials([alpha, shifted, two]) + emitted[t]).clamp(min=_LOW)
        alpha = torch.where((t < lengths)[:, None], new, alpha)
    end = 2 * sizes[:, None]
    inner = torch.where(end > 0, alpha.gather(1, (end - 1).clamp(min=0)), _LOW)
    loss = -_sum_of_exponentials([alpha.gather(1, end), inner]).squeeze(1)
    loss = loss + _as_of_log_softmax(log_probs, lengths)
    loss = torch.where(loss > -_LOW / 2, 0.0 if zero_infinity else float("inf"), loss)
    if reduction == 0:
        return loss.squeeze(0) if single else loss
    return loss.sum() if reduction == 2 else (loss / sizes.clamp(min=1)).mean()


def _in_rows(targets: torch.Tensor, target_lengths: Any, blank: int) -> torch.Tensor:
    """A row for each sequence, filled up with blanks; as long as all together where no number says the longest."""
    sizes = _vector(target_lengths, targets.device)
    longest = targets.shape[0] if isinstance(target_lengths, torch.Tensor) else max(target_lengths, default=0)
    places = torch.arange(longest, device=targets.device)
    begins = sizes.cumsum(0) - sizes
    filled = functional.pad(targets, (0, 1), value=blank)
    own = torch.where(places < sizes[:, None], begins[:, None] + places, targets.shape[0])
    return filled[own]


def _as_of_log_softmax(log_probs: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Zero, [N], with the part of torch's gradient that log_softmax takes away again: the probabilities."""
    probabilities = log_probs.exp()
    nothing = (probabilities - probabilities.detach()).sum(-1)
    steps = torch.arange(log_probs.shape[0], device=log_probs.device)
    return (nothing * (steps[:, None] < lengths)).sum(0)


def _vector(lengths: Any, device: torch.device) -> torch.Tensor:
    tensor = lengths if isinstance(lengths, torch.Tensor) else torch.tensor(lengths)
    return tensor.to(device=device, dtype=torch.int64).reshape(-1)


def _sum_of_exponentials(terms: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.logsumexp(torch.stack(list(terms)), 0)
