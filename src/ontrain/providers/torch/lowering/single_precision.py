"""Kernels that ATen has on processors for single and double precision only, for shorter numbers."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

import torch

from ontrain.capture import HALF_DTYPES

__all__ = ["in_single_precision"]


def in_single_precision(kernel: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return a function that computes in float32 where its tensors are shorter, and rounds the result to their type.

    Args:
        kernel: takes tensors of one type first, and returns a tensor of this type.
    """

    @wraps(kernel)
    def widened(x: torch.Tensor, *others: object) -> torch.Tensor:
        if x.dtype not in HALF_DTYPES or x.device.type != "cpu":
            return kernel(x, *others)
        wide = [other.float() if isinstance(other, torch.Tensor) else other for other in others]
        return kernel(x.float(), *wide).to(x.dtype)

    return widened
