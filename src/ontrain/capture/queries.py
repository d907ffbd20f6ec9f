"""What a tensor says of itself: calls that compute nothing, of which a mode that sees each call has nothing to note.

A trace makes tens of thousands of them, most of them in torch's own tracer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["QUERIES"]

_ATTRIBUTES = (
    "device", "dtype", "is_leaf", "is_nested", "is_quantized", "is_sparse", "layout", "requires_grad", "shape",
)  # fmt: skip
_METHODS = (
    "dim", "is_conj", "is_floating_point", "is_inference", "is_neg", "numel", "size", "storage_offset", "stride",
    "untyped_storage",
)  # fmt: skip
QUERIES: frozenset[Callable[..., Any]] = frozenset(
    [getattr(torch.Tensor, name).__get__ for name in _ATTRIBUTES] + [getattr(torch.Tensor, name) for name in _METHODS]
)
