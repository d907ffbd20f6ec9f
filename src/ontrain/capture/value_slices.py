"""Writes to places that are numbers out of tensors, where torch's tracer takes a slice twice, each time of a new size.

h[:n] = 0     →   h[arange(size)[:n]] = 0
h[n] = 0      →   h[arange(size).select(0, n)] = 0
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["getitem", "setitem"]


def getitem(input: torch.Tensor, index: Any) -> Any:
    """Return `input[index]`; a bound may be a tensor, which up to torch 2.12 is asked for."""
    return input[tuple(map(_bounded, index)) if isinstance(index, tuple) else _bounded(index)]


def setitem(input: torch.Tensor, index: Any, value: Any) -> None:
    """Write `input[index] = value`; a place, bound or step may be a number that follows from values."""
    parts = [_bounded(part) for part in index] if isinstance(index, tuple) else [_bounded(index)]
    varying = [at for at, part in enumerate(parts) if _has_numbers(part)]
    if varying and _is_plain(parts) and varying[-1] - varying[0] == len(varying) - 1:
        axes = _axes(parts, input.dim())
        for rank, at in enumerate(reversed(varying)):  # adjacent places span the block where the slices stood
            places = _places(input, axes[at], parts[at])
            parts[at] = places.reshape([*places.shape, *[1] * rank]) if places.dim() else places
    input[tuple(parts) if isinstance(index, tuple) else parts[0]] = value


def _is_a_number(bound: Any) -> bool:
    """Whether a bound is a tensor with a whole number."""
    if not isinstance(bound, torch.Tensor) or bound.dim():
        return False
    return not (bound.is_floating_point() or bound.is_complex() or bound.dtype is torch.bool)


def _bounded(part: Any) -> Any:
    if not isinstance(part, slice):
        return part
    return slice(*(b.item() if _is_a_number(b) else b for b in (part.start, part.stop, part.step)))


def _varies(number: Any) -> bool:
    return isinstance(number, torch.SymInt) and not number.node.has_hint()


def _has_numbers(part: Any) -> bool:
    return any(map(_varies, (part.start, part.stop, part.step) if isinstance(part, slice) else (part,)))


def _is_plain(parts: Sequence[Any]) -> bool:
    """Whether places along an axis take the slice's own place in the result: no other part is an array."""
    return all(part is None or part is Ellipsis or isinstance(part, slice | int | torch.SymInt) for part in parts)


def _axes(parts: Sequence[Any], rank: int) -> list[int]:
    """The axis that each part is for."""
    consumed = sum(part is not None and part is not Ellipsis for part in parts)
    axes, axis = [], 0
    for part in parts:
        axes.append(axis)
        axis += rank - consumed if part is Ellipsis else part is not None
    return axes


def _places(input: torch.Tensor, axis: int, part: slice | int) -> torch.Tensor:
    """The places along an axis that a slice takes, or the place."""
    places = torch.arange(input.shape[axis], device=input.device)
    if not isinstance(part, slice):
        return places.select(0, part)
    if part.start is not None or part.stop is not None:
        places = places[part.start : part.stop]
    if part.step is None:
        return places
    count = (places.shape[0] + part.step - 1) // part.step
    return places.index_select(0, torch.arange(count, device=input.device) * part.step)
