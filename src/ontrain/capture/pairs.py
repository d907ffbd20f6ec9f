"""Places in a triangle, pairs of rows and other combinations, as many as sizes say: torch's own know their count late.

    torch.combinations(x)   →   chooses by a mask, whose places torch counts when it runs
    torch.triu_indices(n)   →   is a constant, for n of the capture

Here row follows row, and the number of places in each is computed of the sizes.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["combinations", "pdist", "tril_indices", "triu_indices"]


def combinations(input: torch.Tensor, r: int = 2, with_replacement: bool = False) -> torch.Tensor:
    """Return `torch.combinations` of the elements of a vector: [count, r], in the order of their places."""
    if input.dim() != 1 or r < 1:
        return torch.combinations(input, r, with_replacement)
    size, step = input.shape[0], 0 if with_replacement else 1
    last = torch.arange(size, device=input.device)
    chosen, count = [last], size
    for k in range(1, r):
        count = count * torch.sym_max(size + k - 2 * k * step, 0) // (k + 1)
        rows, last = _ranges(last + step, size, count)
        chosen = [*(places[rows] for places in chosen), last]
    return torch.stack([input[places] for places in chosen], dim=1)


def pdist(input: torch.Tensor, p: float = 2.0) -> torch.Tensor:
    """Return `torch.pdist` of rows [n, features]: the distances of n · (n - 1) / 2 pairs."""
    if input.dim() != 2:
        return torch.pdist(input, p)
    first, second = triu_indices(input.shape[0], input.shape[0], 1)
    pair = input[first].unsqueeze(1), input[second].unsqueeze(1)
    return torch.cdist(*pair, p=p, compute_mode="donot_use_mm_for_euclid_dist").flatten()


def triu_indices(row: Any, col: Any, offset: int = 0, **options: Any) -> torch.Tensor:
    """Return `torch.triu_indices`: the places [2, count] on and above a diagonal."""
    if not (_varies(row) or _varies(col)):
        return torch.triu_indices(row, col, offset, **options)
    device = options.get("device")
    first = (torch.arange(row, device=device) + offset).clamp(min=0)
    return _indices(first, col, _below(col - offset, row) - _below(-offset, row), options)


def tril_indices(row: Any, col: Any, offset: int = 0, **options: Any) -> torch.Tensor:
    """Return `torch.tril_indices`: the places [2, count] on and below a diagonal."""
    if not (_varies(row) or _varies(col)):
        return torch.tril_indices(row, col, offset, **options)
    ends = (torch.arange(row, device=options.get("device")) + (offset + 1)).clamp(min=0)
    count = row * col - _below(col - offset - 1, row) + _below(-offset - 1, row)
    return _indices(torch.zeros_like(ends), torch.minimum(ends, ends.new_full((), col)), count, options)


def _indices(first: torch.Tensor, end: Any, count: Any, options: dict[str, Any]) -> torch.Tensor:
    return torch.stack(_ranges(first, end, count)).to(options.get("dtype", torch.int64))


def _ranges(first: torch.Tensor, end: Any, count: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """For each row the numbers from its first one up to an end: as vectors the row of each, and the numbers."""
    lengths = (end - first).clamp(min=0)
    rows = torch.repeat_interleave(lengths, output_size=count)
    before = lengths.cumsum(0) - lengths
    return rows, torch.arange(count, device=first.device) + (first - before)[rows]


def _below(most: Any, rows: Any) -> Any:
    """The sum of what is positive of `most`, `most` - 1, … for so many rows."""
    return _triangle(most) - _triangle(most - rows)


def _triangle(size: Any) -> Any:
    positive = torch.sym_max(size, 0)
    return positive * (positive + 1) // 2


def _varies(size: Any) -> bool:
    return isinstance(size, torch.SymInt)
