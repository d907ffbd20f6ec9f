"""How working memory is asked for, and what the C library does with memory that kernels gave back."""

from __future__ import annotations

import ctypes
import functools
import sys

import torch

__all__ = ["empty", "keep_freed_pages", "return_freed_pages"]

_LARGE, _HUGEPAGE = 2 << 20, 14
"""Bytes of a large page, and the advice to use them."""
_BLOCK = 31 << 20
"""Bytes; glibc learns from blocks of 32 MiB at most."""


def empty(nbytes: int, device: torch.device) -> torch.Tensor:
    """Return working memory, uint8 [nbytes] of any value, on large pages where the system has them.

    Every step goes through it many times, and looks one address up for each 2 MiB instead of each 4 KiB:
    `MADV_HUGEPAGE` in madvise(2). Where the system has no such pages, or keeps them from processes that ask, nothing
    changes.
    """
    memory = torch.empty(nbytes, dtype=torch.uint8, device=device)
    advise = getattr(_library(), "madvise", None) if sys.platform == "linux" and device.type == "cpu" else None
    if advise is not None:
        begin, end = memory.data_ptr(), memory.data_ptr() + nbytes
        start = -(-begin // _LARGE) * _LARGE
        advise(ctypes.c_void_p(start), ctypes.c_size_t(max(0, end - start) // _LARGE * _LARGE), _HUGEPAGE)
    return memory


@functools.cache
def keep_freed_pages() -> None:
    """Have glibc keep what is freed for the next step, instead of returning it to the system and faulting it in anew.

    It keeps as much as twice the largest block that was ever freed (`M_TRIM_THRESHOLD` in mallopt(3)); which that is,
    would else depend on the model. So one is taken, untouched, and freed. Limits that the user has set stay.
    """
    torch.empty(_BLOCK, dtype=torch.uint8, device="cpu")


def return_freed_pages() -> None:
    """Have glibc return what is free now, after work that is not done again: no step needs as much."""
    trim = getattr(_library(), "malloc_trim", None)
    if trim is not None:
        trim(0)


@functools.cache
def _library() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(None)
    except (OSError, TypeError):  # a system whose libraries have names
        return None
