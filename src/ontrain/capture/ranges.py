"""Evenly spaced numbers, as many as a size says: torch's own operators take a number of the capture for the size.

torch.linspace(0, 1, x.shape[1])   →   counts by a range, which varies
torch.fft.fftfreq(x.shape[1])      →   the same
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["fftfreq", "linspace", "logspace", "rfftfreq"]


def linspace(start: Any, end: Any, steps: Any, *, out: Any = None, dtype: Any = None, **options: Any) -> torch.Tensor:
    """Return `torch.linspace`: [steps], counted from both ends, as torch counts."""
    wanted = _dtype(dtype)
    numbers = all(isinstance(limit, int | float) for limit in (start, end))
    if out is not None or not isinstance(steps, torch.SymInt) or not numbers or not wanted.is_floating_point:
        return torch.linspace(start, end, steps, out=out, dtype=dtype, **options)
    count: Any = steps
    counted = torch.arange(count, dtype=wanted, **options)
    step = (end - start) / torch.sym_max(count - 1, 1)
    return torch.where(counted < count // 2, start + step * counted, end - step * ((count - 1) - counted))


def logspace(start: Any, end: Any, steps: Any, base: float = 10.0, **options: Any) -> torch.Tensor:
    """Return `torch.logspace`: [steps]."""
    if not isinstance(steps, torch.SymInt) or options.get("out") is not None:
        return torch.logspace(start, end, steps, base, **options)
    return torch.pow(base, linspace(start, end, steps, **options))


def fftfreq(n: Any, d: float = 1.0, *, dtype: torch.dtype | None = None, **options: Any) -> torch.Tensor:
    """Return `torch.fft.fftfreq`: [n], the frequencies of a Fourier transform's places; negative ones come last."""
    n = n.item() if isinstance(n, torch.Tensor) else n
    counted = torch.arange(n, dtype=_dtype(dtype), **options)
    frequencies: torch.Tensor = torch.where(counted < (n + 1) // 2, counted, counted - n) * (1.0 / (n * d))
    return frequencies


def rfftfreq(n: Any, d: float = 1.0, *, dtype: torch.dtype | None = None, **options: Any) -> torch.Tensor:
    """Return `torch.fft.rfftfreq`: [n // 2 + 1], the frequencies that are not negative."""
    n = n.item() if isinstance(n, torch.Tensor) else n
    frequencies: torch.Tensor = torch.arange(n // 2 + 1, dtype=_dtype(dtype), **options) * (1.0 / (n * d))
    return frequencies


def _dtype(dtype: torch.dtype | None) -> torch.dtype:
    return torch.get_default_dtype() if dtype is None else dtype
