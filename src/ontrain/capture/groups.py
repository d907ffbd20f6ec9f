"""Products of groups of rows in any dtype: torch traces those of bfloat16 only, and computes others, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ontrain.internals import available

__all__ = ["grouped_products"]

_SHAPE = "torch._meta_registrations._meta_grouped_mm_common"


def grouped_products() -> dict[str, Callable[[Any], Any]]:
    """Return what to make of the function that tells a trace the shape of `torch.nn.functional.grouped_mm`, by name."""
    return {} if available(_SHAPE) is None else {_SHAPE: _in_any_dtype}


def _in_any_dtype(own: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def shape(
        mat_a: torch.Tensor, mat_b: torch.Tensor, scale_a: Any, scale_b: Any, *args: Any, **named: Any
    ) -> torch.Tensor:
        other = scale_a is None and scale_b is None and mat_a.dtype is mat_b.dtype is not torch.bfloat16
        if not other or (mat_a.ndim, mat_b.ndim) != (2, 3) or not mat_a.is_floating_point():
            return own(mat_a, mat_b, scale_a, scale_b, *args, **named)
        return mat_a.new_empty(mat_a.shape[0], mat_b.shape[2], dtype=named.get("out_dtype") or mat_a.dtype)

    return shape
