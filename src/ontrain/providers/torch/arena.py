"""Offsets in one arena for storages whose lifetimes are known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ontrain.providers.torch.buffers import Storage
from ontrain.providers.torch.state import ALIGN

__all__ = ["place"]

_ANY = np.iinfo(np.int64).max


def place(storages: Sequence[Storage]) -> int:
    """Set the offset of every storage and return the bytes of the arena.

    The largest comes first, and takes the smallest gap between those that are alive at the same time. On training steps
    that is within a percent of the least that lifetimes allow; to hand out memory in the order of the program took up
    to 2.3 times as much, because small masks that live long cut up what large results leave behind.
    """
    placed = _Placed(len(storages))
    for storage in sorted(storages, key=lambda s: -s.nbytes):
        size = -(-storage.nbytes // ALIGN) * ALIGN
        storage.offset = placed.gap(storage.born, storage.dies, size)
        placed.add(storage.born, storage.dies, storage.offset, size)
    return placed.top


class _Placed:
    """What has its place, in the order of offsets, in arrays: a plan has thousands of storages."""

    def __init__(self, count: int) -> None:
        self._born, self._dies, self._start, self._end = (np.empty(count, np.int64) for _ in range(4))
        self._count = 0
        self.top = 0

    def gap(self, born: int, dies: int, size: int) -> int:
        """The start of the smallest gap of at least `size` bytes among those alive at the same time."""
        n = self._count
        together = (self._born[:n] <= dies) & (self._dies[:n] >= born)
        starts = self._start[:n][together]
        free_from = np.concatenate(([0], np.maximum.accumulate(self._end[:n][together])))
        gaps = np.concatenate((starts, [_ANY])) - free_from
        return int(free_from[np.argmin(np.where(gaps >= size, gaps, _ANY))])

    def add(self, born: int, dies: int, start: int, size: int) -> None:
        n = self._count
        at = int(np.searchsorted(self._start[:n], start))
        row = (born, dies, start, start + size)
        for array, value in zip((self._born, self._dies, self._start, self._end), row, strict=True):
            array[at + 1 : n + 1] = array[at:n]
            array[at] = value
        self._count, self.top = n + 1, max(self.top, start + size)
