"""What a search does to the scores of the next tokens before it chooses."""

from __future__ import annotations

import torch

from ontrain.errors import InputError
from ontrain.inference.stepwise.search.settings import Settings
from ontrain.inference.stepwise.search.timestamps import Timestamps

__all__ = ["Rules", "best"]

_NEVER = torch.finfo(torch.float32).min
"""The score of a token that is not to be chosen, as onnxruntime has it."""


class Rules:
    """Rules in onnxruntime's order: repetition, n-grams, masks, least length, temperature, presence, timestamps.

    Args:
        settings: say which.
        presence: [batch, vocab_size], what the score of a token is lowered by; None for nothing.
        timestamps: where they may be; None for no rules on them.
    """

    def __init__(
        self, settings: Settings, presence: torch.Tensor | None = None, timestamps: Timestamps | None = None
    ) -> None:
        self._settings, self._presence, self._timestamps = settings, presence, timestamps

    def applied(self, scores: torch.Tensor, sequences: torch.Tensor, step: int) -> torch.Tensor:
        """Return the scores [rows, vocab_size] under the rules.

        Args:
            scores: of each row's next token.
            sequences: tokens so far, [rows, length].
            step: 1 for the first token.

        Raises:
            InputError: a mask is for another vocabulary.
        """
        settings, length = self._settings, sequences.shape[1]
        scores = scores.clone()
        if settings.repetition_penalty != 1:
            present = scores.gather(1, sequences)
            penalty = settings.repetition_penalty
            scores.scatter_(1, sequences, torch.where(present < 0, present * penalty, present / penalty))
        if 0 < settings.ngram <= length:
            windows = sequences.unfold(1, settings.ngram, 1)
            prefix = sequences[:, length - settings.ngram + 1 :]
            rows, places = (windows[:, :, :-1] == prefix[:, None]).all(-1).nonzero(as_tuple=True)
            scores[rows, windows[rows, places, -1]] = _NEVER
        if settings.vocab_mask is not None:
            scores[:, _fitting(settings.vocab_mask, scores) == 0] = _NEVER
        if settings.prefix_mask is not None and step == 1:
            mask = _fitting(settings.prefix_mask, scores)
            scores[mask.repeat_interleave(scores.shape[0] // mask.shape[0], 0) == 0] = _NEVER
        if length < settings.min_length:
            scores[:, settings.eos] = _NEVER
        if settings.temperature > 0:
            scores = scores / settings.temperature
        if self._presence is not None:
            scores = scores - _fitting(self._presence, scores)
        return scores if self._timestamps is None else self._timestamps.applied(scores, sequences, _NEVER)


def _fitting(mask: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    if mask.shape[-1] != scores.shape[1]:
        raise InputError(f"a mask is for {mask.shape[-1]} tokens, and the decoder knows {scores.shape[1]}")
    return mask


def best(scores: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the greatest of each row of scores, greatest first, and their places; of equal ones the first comes first.

    Args:
        scores: [rows, n].
        count: how many of a row.

    Returns:
        Two tensors [rows, count].
    """
    values, places = torch.topk(scores, count)
    for row in range(scores.shape[0]):  # topk takes equal ones in any order
        least = values[row, -1]
        candidates = (scores[row] >= least).nonzero().reshape(-1)
        if len(candidates) >= count:  # there are fewer among numbers that are none
            order = torch.sort(scores[row, candidates], descending=True, stable=True).indices[:count]
            places[row] = candidates[order]
    return scores.gather(1, places), places
