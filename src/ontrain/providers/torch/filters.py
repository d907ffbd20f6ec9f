"""Filters of convolutions in the order in which oneDNN convolves."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

from ontrain.internals import available

__all__ = ["CONVOLUTION", "Filters", "Windows"]

CONVOLUTION: Any = available("torch.ops.mkldnn._convolution_pointwise")
"""oneDNN's convolution with what follows it, or None in a build of torch that lacks it."""
_REORDER: Any = available("torch.ops.mkldnn._reorder_convolution_weight")
_ADDRESS: Any = available("torch.ops.mkldnn.data_ptr")
_BYTES: Any = available("torch.ops.mkldnn._nbytes")
_HAS_KERNELS = None not in (CONVOLUTION, _REORDER, _ADDRESS, _BYTES)

Windows = tuple[list[int], list[int], list[int], int]
"""Pads, strides, dilations and groups."""


class Filters:
    """The weights of one session that never change, in oneDNN's order. One thread at a time may use it.

    The order depends on the images' sizes, but less than the images do: plans at many sizes share filters.
    """

    def __init__(self) -> None:
        self._orders: dict[tuple[object, ...], list[torch.Tensor]] = {}

    def of(self, w: torch.Tensor, windows: Windows, images: Sequence[int]) -> torch.Tensor | None:
        """Return the filters for images of a shape; None where oneDNN has no order of its own.

        Args:
            w: [M, C / groups, kH, kW], float32 or bfloat16.
            windows: how they move over the images.
            images: [N, C, H, W].
        """
        if not _HAS_KERNELS:
            return None
        pads, strides, dilations, groups = windows
        try:
            filters: torch.Tensor = _REORDER(w, pads, strides, dilations, groups, list(images))
        except RuntimeError:
            return None
        known = self._orders.setdefault((w.data_ptr(), w.shape, *map(tuple, windows[:3]), groups), [])
        memory = _memory(filters)
        for shared in known:
            if torch.equal(_memory(shared), memory):
                return shared
        known.append(filters)
        return filters


def _memory(filters: torch.Tensor) -> torch.Tensor:
    """The bytes that oneDNN reads; torch does not know how they lie."""
    raw = (ctypes.c_byte * int(_BYTES(filters))).from_address(_ADDRESS(filters))
    return torch.frombuffer(raw, dtype=torch.uint8)
