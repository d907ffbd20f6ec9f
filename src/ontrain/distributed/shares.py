"""Which elements of which parameter a process updates, where each updates a share (ZeRO stage 1).

Parameters lie one after the other in flat tensors, one for each group of hyper-parameters and dtype. Each process has
an equal part of each, so a parameter may begin on one process and end on another.

Source: Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
arXiv:1910.02054, stage 1 (P_os).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ontrain.providers import FlatState

__all__ = ["Share", "all_shares", "shares"]


@dataclass(frozen=True)
class Share:
    """Elements [start, stop) of a flattened parameter."""

    parameter: str
    start: int
    stop: int

    @property
    def name(self) -> str:
        """What the share is called among the session's resident tensors."""
        return f"{self.parameter}[{self.start}:{self.stop}]"


def shares(state: FlatState, shapes: Mapping[str, tuple[int, ...]], rank: int, size: int) -> list[Share]:
    """Return the stretches of the parameters that process `rank` of `size` updates."""
    owners = []
    for name, shape in shapes.items():
        key, first = state.place[name]
        part = state.flat[key].numel() // size
        start = max(0, rank * part - first)
        stop = min(math.prod(shape), (rank + 1) * part - first)
        if start < stop:
            owners.append(Share(name, start, stop))
    return owners


def all_shares(
    state: FlatState, shapes: Mapping[str, tuple[int, ...]], ranks: Iterable[int], size: int
) -> dict[str, list[tuple[int, int, int]]]:
    """Return (rank, start, stop) of the shares of each parameter, by rising start."""
    pieces: dict[str, list[tuple[int, int, int]]] = {name: [] for name in shapes}
    for rank in ranks:
        for share in shares(state, shapes, rank, size):
            pieces[share.parameter].append((rank, share.start, share.stop))
    return pieces
