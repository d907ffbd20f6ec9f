"""What the C library does with memory that kernels gave back."""

from __future__ import annotations

import ctypes
import functools

import torch

__all__ = ["keep_freed_pages", "return_freed_pages"]

_BLOCK = 31 << 20
"""Bytes; glibc learns from blocks of 32 MiB at most."""


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
