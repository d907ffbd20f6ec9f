"""Tokens drawn from scores, with the numbers that onnxruntime draws on Linux."""

from __future__ import annotations

import numpy as np
import torch

from ontrain.inference.stepwise.values import Array

__all__ = ["Generator", "draw", "nucleus"]

_MODULUS = 2**31 - 1
_RANGE = float(_MODULUS - 1)


class Generator:
    """The generator that C++'s standard library of GNU gives by default, minstd_rand0, and its numbers in [0, 1).

    Args:
        seed: 0 stands for 1.
    """

    def __init__(self, seed: int) -> None:
        self._state = seed % _MODULUS or 1

    def uniform(self) -> float:
        """Return the next number, which takes two of the generator's."""
        low, high = self._next(), self._next()
        return min((low + high * _RANGE) / (_RANGE * _RANGE), float(np.nextafter(1.0, 0.0)))

    def _next(self) -> float:
        self._state = self._state * 16807 % _MODULUS
        return float(self._state - 1)


def nucleus(scores: torch.Tensor, top_p: float, filled: float, least: int, *, custom: bool) -> Array:
    """Return scores of the likeliest tokens whose probabilities add up to `top_p`, `filled` in place of the others.

    Args:
        scores: float32 [rows, n].
        top_p: between 0 and 1.
        filled: the score of tokens left out.
        least: tokens that stay in any case, unless custom.
        custom: counts from the likeliest token, which stays; else from the least likely one.
    """
    result = np.array(scores.numpy(force=True), np.float32)
    order = np.argsort(-result if custom else result, axis=1, kind="stable")
    ordered = torch.from_numpy(np.take_along_axis(result, order, 1))
    shares = np.cumsum(torch.softmax(ordered, -1).numpy(), axis=1, dtype=np.float32)
    if custom:
        leaves_out = np.zeros(shares.shape, bool)
        leaves_out[:, 1:] = shares[:, :-1] > np.float32(top_p)
    else:
        leaves_out = shares <= np.float32(1) - np.float32(top_p)
        leaves_out[:, max(shares.shape[1] - least, 1) :] = False
    rows, places = np.nonzero(leaves_out)
    result[rows, order[rows, places]] = filled
    return result


def draw(scores: Array, generator: Generator) -> list[int]:
    """Return a token for each row of scores [rows, n], drawn by the probabilities that they are the logarithms of."""
    tokens = []
    for row in scores:
        counted = np.isfinite(row)
        greatest = float(row[counted].max(initial=np.finfo(np.float32).min))
        shares = np.cumsum(np.where(counted, np.exp(np.where(counted, row, 0).astype(np.float64) - greatest), 0.0))
        place = int(np.searchsorted(shares, generator.uniform() * shares[-1], side="right"))
        tokens.append(min(place, len(row) - 1))
    return tokens
