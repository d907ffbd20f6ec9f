"""Results in half precision beside eager's: the same dtypes, and as near to those of float64."""

from __future__ import annotations

from collections.abc import Sequence

import torch

__all__ = ["error", "unlike_eager"]

Tensors = Sequence[torch.Tensor | None]


def error(values: torch.Tensor, exact: torch.Tensor) -> float:
    """The mean distance from exact values, over their mean size."""
    values, exact = values.detach().double(), exact.detach().double()
    return float((values - exact).abs().mean() / (exact.abs().mean() + 1e-6)) if values.numel() else 0.0


def unlike_eager(ours: Tensors, eager: Tensors, exact: Tensors, half: torch.dtype, factor: float = 2.0) -> list[str]:
    """What of our results has another dtype or shape than eager's, or is further from float64's.

    Args:
        ours: results.
        eager: eager's.
        exact: those of the same numbers in double precision.
        half: the dtype in which something was computed; a quarter of its epsilon, the error of one rounding, is chance.
        factor: how many times eager's error is allowed.
    """
    assert len(ours) == len(eager) == len(exact)
    unlike = []
    for i, (x, y, z) in enumerate(zip(ours, eager, exact, strict=True)):
        if x is None or y is None or z is None:
            if (x is None) != (y is None):
                unlike.append(f"{i} is {x}, eager's {y}")
        elif x.dtype != y.dtype or x.shape != y.shape:
            unlike.append(f"{i} is {x.dtype}{list(x.shape)}, eager's {y.dtype}{list(y.shape)}")
        elif x.is_floating_point() and y.isfinite().all():
            distance, allowed = error(x, z), factor * error(y, z) + torch.finfo(half).eps / 4
            if not distance <= allowed:
                unlike.append(f"{i} is off by {distance:.2g}, eager's by {error(y, z):.2g}")
        elif not x.is_floating_point() and not torch.equal(x, y):
            unlike.append(f"{i} has other values")
    return unlike
