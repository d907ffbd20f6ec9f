"""Factors of the learning rate by the share x of the run that is done: a linear warmup from 0, then four ways on."""

from __future__ import annotations

import math
from collections.abc import Callable

__all__ = ["SCHEDULES", "warmup_constant", "warmup_cosine", "warmup_linear", "warmup_poly"]


def warmup_cosine(x: float, warmup: float = 0.002) -> float:
    """½ (1 + cos(πx)) after the warmup."""
    return x / warmup if x < warmup else 0.5 * (1.0 + math.cos(math.pi * x))


def warmup_constant(x: float, warmup: float = 0.002) -> float:
    """1 after the warmup."""
    return x / warmup if x < warmup else 1.0


def warmup_linear(x: float, warmup: float = 0.002) -> float:
    """(1 − x) / (1 − warmup) after the warmup, and 0 past the end."""
    return x / warmup if x < warmup else max((x - 1.0) / (warmup - 1.0), 0.0)


def warmup_poly(x: float, warmup: float = 0.002, degree: float = 0.5) -> float:
    """(1 − x)^degree after the warmup, and 0 past the end."""
    return x / warmup if x < warmup else max(1.0 - x, 0.0) ** degree


SCHEDULES: dict[str, Callable[[float, float], float]] = {
    "warmup_cosine": warmup_cosine,
    "warmup_constant": warmup_constant,
    "warmup_linear": warmup_linear,
    "warmup_poly": warmup_poly,
}
"""All schedules by name."""
