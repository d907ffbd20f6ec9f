"""Weights in the orders in which oneDNN convolves and multiplies."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch

from ontrain.internals import available

__all__ = ["CONVOLUTION", "HAS_ORDER", "LINEAR", "Weights", "Windows", "memory_of", "reordered"]

CONVOLUTION: Any = available("torch.ops.mkldnn._convolution_pointwise")
"""oneDNN's convolution with what follows it, or None in a build of torch that lacks it."""
LINEAR: Any = available("torch.ops.mkldnn._linear_pointwise")
"""oneDNN's kernel for linear layers and what follows them, or None in a build of torch that lacks it."""
_REORDER: Any = available("torch.ops.mkldnn._reorder_convolution_weight")
_REORDER_MATRIX: Any = available("torch.ops.mkldnn._reorder_linear_weight")
_ADDRESS: Any = available("torch.ops.mkldnn.data_ptr")
_BYTES: Any = available("torch.ops.mkldnn._nbytes")
HAS_ORDER = None not in (_REORDER, _ADDRESS, _BYTES)
"""Whether this build of torch brings filters into oneDNN's order."""

Derived = TypeVar("Derived")
Windows = tuple[list[int], list[int], list[int], int]
"""Pads, strides, dilations and groups."""


class Weights:
    """The weights of one session that never change, in oneDNN's orders. One thread at a time may use it.

    The order of filters depends on the images' sizes, but less than the images do: plans at many sizes share filters.
    """

    def __init__(self) -> None:
        self._alive: list[torch.Tensor] = []
        self._orders: dict[tuple[object, ...], list[torch.Tensor]] = {}
        self._derived: dict[tuple[object, ...], Any] = {}
        self._holders: WeakKeyDictionary[Any, int] = WeakKeyDictionary()

    @property
    def held_bytes(self) -> int:
        """What plans hold of weights in an order of their own, each for its sizes."""
        return sum(self._holders.values())

    def note_holder(self, holder: object, nbytes: int) -> None:
        """Note who holds weights in an order of its own, for as long as it lives."""
        self._holders[holder] = nbytes

    def derived(self, form: Hashable, sources: Sequence[torch.Tensor], make: Callable[[], Derived]) -> Derived:
        """Return what follows from tensors that never change, made when it is first asked for.

        Args:
            form: tells apart what is made of the same sources.
            sources: what it is made of.
            make: makes it.
        """
        key = form, *map(_key, sources)
        if key not in self._derived:
            self._derived[key] = make()
            self._alive.extend(sources)
        result: Derived = self._derived[key]
        return result

    def windows(self, w: torch.Tensor) -> torch.Tensor:
        """Return filters over one axis as the right factor of their windows, whose pixels lie one after another.

        Args:
            w: [M, C, K] or [M, C, 1, K].

        Returns:
            [K · C, M].
        """
        return self.derived("windows", [w], lambda: w.flatten(2).permute(2, 1, 0).flatten(0, 1).contiguous())

    def matrix(self, w: torch.Tensor) -> torch.Tensor | None:
        """Return the weight of a linear layer for any number of rows; None where oneDNN has no order of its own.

        Args:
            w: [columns of the result, inner size], float32, in any layout.
        """
        if LINEAR is None or _REORDER_MATRIX is None:
            return None
        matrix: torch.Tensor = self.derived("matrix", [w], lambda: _REORDER_MATRIX(w.contiguous(), None))
        return matrix

    def filters(self, w: torch.Tensor, windows: Windows, images: Sequence[int]) -> torch.Tensor | None:
        """Return the filters for images of a shape; None where oneDNN has no order of its own.

        Args:
            w: [M, C / groups, kH, kW], float32 or bfloat16.
            windows: how they move over the images.
            images: [N, C, H, W].
        """
        if CONVOLUTION is None or not HAS_ORDER:
            return None
        try:
            filters = reordered(w, windows, images)
        except RuntimeError:
            return None
        known = self._orders.setdefault((*_key(w), *map(tuple, windows[:3]), windows[3]), [])
        memory = memory_of(filters)
        for shared in known:
            if torch.equal(memory_of(shared), memory):
                return shared
        known.append(filters)
        self._alive.append(w)
        return filters


def _key(w: torch.Tensor) -> tuple[object, ...]:
    """What tells weights apart, as long as they are there."""
    return w.data_ptr(), w.shape, w.stride()


def reordered(w: torch.Tensor, windows: Windows, images: Sequence[int]) -> torch.Tensor:
    """Return weights [M, C / groups, kH, kW] in oneDNN's order for images of a shape; torch does not know how they lie.

    Raises:
        RuntimeError: oneDNN does not convolve such numbers.
    """
    filters: torch.Tensor = _REORDER(w, *windows, list(images))
    return filters


def memory_of(filters: torch.Tensor, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    """Return the memory of filters in oneDNN's order, from first to last, as long as they live."""
    raw = (ctypes.c_byte * int(_BYTES(filters))).from_address(_ADDRESS(filters))
    return torch.frombuffer(raw, dtype=dtype)
