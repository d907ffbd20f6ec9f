"""Evenly spaced numbers, as many as a size says: torch's own operators take a number of the capture for the size.

torch.linspace(0, 1, x.shape[1])   →   counts by a range, which varies
torch.linspace(low, high, 5)       →   the same between two tensors or numbers that vary
torch.fft.fftfreq(x.shape[1])      →   the same
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["fftfreq", "linspace", "logspace", "rfftfreq"]


def linspace(start: Any, end: Any, steps: Any, *, out: Any = None, dtype: Any = None, **options: Any) -> torch.Tensor:
    """Return `torch.linspace`: [steps], counted from both ends, as torch counts; no gradient passes to its limits."""
    start, end = _without_gradient(start), _without_gradient(end)
    if out is not None or not _vary(start, end, steps) or not _dtype(dtype).is_floating_point:
        return torch.linspace(start, end, steps, out=out, dtype=dtype, **options)
    counted = torch.arange(steps, dtype=_dtype(dtype), **options)
    step = (end - start) / torch.sym_max(steps - 1, 1)
    numbers = torch.where(counted < steps // 2, start + step * counted, end - step * ((steps - 1) - counted))
    return numbers.to(counted.dtype)  # a limit may be a tensor of another


def logspace(start: Any, end: Any, steps: Any, base: float = 10.0, **options: Any) -> torch.Tensor:
    """Return `torch.logspace`: [steps]; no gradient passes to its limits."""
    start, end = _without_gradient(start), _without_gradient(end)
    if not _vary(start, end, steps) or options.get("out") is not None:
        return torch.logspace(start, end, steps, base, **options)
    return torch.pow(base, linspace(start, end, steps, **options))


def _without_gradient(limit: Any) -> Any:
    return limit.detach() if isinstance(limit, torch.Tensor) else limit


def _vary(*numbers: Any) -> bool:
    return any(isinstance(number, torch.SymInt | torch.SymFloat) for number in numbers)


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
