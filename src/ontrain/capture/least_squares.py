"""Least squares in tensor operators: torch's own function has results whose sizes depend on its kernel."""

from __future__ import annotations

from typing import NamedTuple

import torch

__all__ = ["LeastSquares", "lstsq"]


class LeastSquares(NamedTuple):
    """What `torch.linalg.lstsq` returns."""

    solution: torch.Tensor
    residuals: torch.Tensor
    rank: torch.Tensor
    singular_values: torch.Tensor


def lstsq(
    input: torch.Tensor, b: torch.Tensor, rcond: float | None = None, *, driver: str | None = None
) -> LeastSquares:
    """Return what `torch.linalg.lstsq` does on a CPU, by the pseudo-inverse, as its gradient is.

    Args:
        input: [*, m, n].
        b: [*, m, k], or [*, m].
        rcond: singular values up to this times the greatest count as zero; by default epsilon · max(m, n).
        driver: decides which of the further results are there, as torch documents; they are those of full rank.
    """
    with torch.autocast(input.device.type, enabled=False):  # which knows no least squares, but products
        return _solved(input, b, rcond, driver)


def _solved(input: torch.Tensor, b: torch.Tensor, rcond: float | None, driver: str | None) -> LeastSquares:
    is_vector = b.ndim == 1 or (b.ndim == input.ndim - 1 and b.shape == input.shape[:-1])
    sides = b.unsqueeze(-1) if is_vector else b
    solution = torch.linalg.pinv(input, rtol=rcond) @ sides
    nothing = input.new_empty(0)
    residuals, rank, values = nothing, input.new_empty(0, dtype=torch.int64), nothing
    if driver not in (None, "gelsy") and input.shape[-2] > input.shape[-1]:
        residuals = (sides - input @ solution).square().sum(-2)
    if driver != "gels":
        rank = torch.linalg.matrix_rank(input, rtol=rcond)
    if driver in ("gelsd", "gelss"):
        values = torch.linalg.svdvals(input)
    return LeastSquares(solution.squeeze(-1) if is_vector else solution, residuals, rank, values)
