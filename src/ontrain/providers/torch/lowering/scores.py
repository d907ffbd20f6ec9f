"""What becomes of a classical model's scores: transforms, and the scores of a second class."""

from __future__ import annotations

import math

import torch

__all__ = ["TRANSFORMS", "of_two_classes", "transformed"]

TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
"""In the order of the numbers that TreeEnsemble gives them."""
_NEAR_ZERO = 1e-7
"""Scores that SOFTMAX_ZERO takes for zero lie within this distance, as in onnxruntime."""


def transformed(scores: torch.Tensor, transform: str) -> torch.Tensor:
    """Return scores [rows, classes] after a `post_transform`."""
    if transform == "SOFTMAX":
        return scores.softmax(-1)
    if transform == "LOGISTIC":
        return scores.sigmoid()
    if transform == "SOFTMAX_ZERO":
        largest = scores.amax(-1, keepdim=True)
        zero = scores.abs() <= _NEAR_ZERO
        powers = torch.where(zero, 0.0, (scores - largest).exp())
        return torch.where(zero, scores * (-largest).exp(), powers) / powers.sum(-1, keepdim=True)
    if transform == "PROBIT":
        return math.sqrt(2) * torch.erfinv(2 * scores - 1)
    return scores


def of_two_classes(score: torch.Tensor, transform: str, *, probability: bool) -> torch.Tensor:
    """Return the scores [rows, 2] of both classes from the score [rows, 1] of the second.

    Args:
        score: of the second class.
        transform: a `post_transform`.
        probability: the score is a probability, so that the other class has what is left to one.
    """
    if transform == "LOGISTIC":
        return torch.cat([-score, score], -1).sigmoid()
    if probability or transform == "PROBIT":
        return transformed(torch.cat([1 - score, score], -1), "PROBIT" if transform == "PROBIT" else "NONE")
    return torch.cat([-score, score], -1)
