"""What this machine's processor can do beyond what every processor does."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import torch

__all__ = ["multiplies_bfloat16", "multiplies_bytes"]


@functools.cache
def multiplies_bfloat16() -> bool:
    """Return whether the processor has units for products of bfloat16."""
    return any(name.endswith("bf16") for name in _flags())  # avx512_bf16 and amx_bf16; bf16 of Arm


@functools.cache
def multiplies_bytes() -> bool:
    """Return whether the processor has units that add products of eight-bit numbers up in 32 bits.

    Without them onnxruntime's kernels lose what does not fit into 16 bits.
    """
    return any(name.endswith("_vnni") for name in _flags())  # avx512_vnni and avx_vnni


def _flags() -> set[str]:
    tell = getattr(torch.cpu, "get_capabilities", None)  # since torch 2.13
    return {name for name, there in tell().items() if there is True} if tell is not None else _linux_flags()


def _linux_flags() -> set[str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return set()
    match = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", text, re.MULTILINE)
    return set(match[1].split()) if match else set()
