"""What this machine's processor can do beyond what every processor does."""

from __future__ import annotations

import functools
import platform
import re
from pathlib import Path

import torch

__all__ = ["flags", "generation", "maker", "multiplies_bfloat16", "multiplies_bytes", "model_name"]


@functools.cache
def multiplies_bfloat16() -> bool:
    """Return whether the processor has units for products of bfloat16."""
    return any(name.endswith("bf16") for name in _units())  # avx512_bf16 and amx_bf16; bf16 of Arm


@functools.cache
def multiplies_bytes() -> bool:
    """Return whether the processor has units that add products of eight-bit numbers up in 32 bits.

    Without them onnxruntime's kernels lose what does not fit into 16 bits.
    """
    return any(name.endswith("_vnni") for name in _units())  # avx512_vnni and avx_vnni


@functools.cache
def model_name() -> str:
    """Return the processor's name, or what the system knows of it instead.

    In a virtual machine AMD's server processors of all generations have the name "AMD EPYC".
    """
    return _field("model name") or platform.processor() or platform.machine()


@functools.cache
def maker() -> str:
    """Return who made the processor: "intel", "amd" or "other"."""
    return {"GenuineIntel": "intel", "AuthenticAMD": "amd"}.get(_field("vendor_id"), "other")


@functools.cache
def generation() -> str | None:
    """Return the generation of an AMD processor, "Zen 4"; None for others, and where it is not known."""
    family, model = _field("cpu family"), _field("model")
    return _zen(int(family), int(model)) if maker() == "amd" and family.isdigit() and model.isdigit() else None


def _zen(family: int, model: int) -> str | None:
    """The generation that a family and a model of AMD's belong to.

    From https://en.wikipedia.org/wiki/List_of_AMD_CPU_microarchitectures.
    """
    if family == 0x17:
        return "Zen" if model < 0x30 else "Zen 2"
    if family == 0x19:
        return "Zen 4" if 0x10 <= model < 0x20 or 0x60 <= model < 0x80 or 0xA0 <= model < 0xB0 else "Zen 3"
    return "Zen 5" if family == 0x1A else None


def flags() -> set[str]:
    """Return what Linux says that the processor can do; nothing on other systems."""
    return set((_field("flags") or _field("Features")).split())


def _units() -> set[str]:
    tell = getattr(torch.cpu, "get_capabilities", None)  # since torch 2.13
    return {name for name, there in tell().items() if there is True} if tell is not None else flags()


def _field(label: str) -> str:
    """What Linux says of the first processor under a label."""
    match = re.search(rf"^{label}\s*:\s*(.*)$", _description(), re.MULTILINE)
    return match[1].strip() if match else ""


@functools.cache
def _description() -> str:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return ""
