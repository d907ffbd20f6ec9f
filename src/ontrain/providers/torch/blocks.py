"""Working memory, of which every run in flight has its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import torch

from ontrain.locks import Lock
from ontrain.providers.torch.heap import empty
from ontrain.providers.torch.replay import Pool

__all__ = ["Block", "Blocks"]


class Block:
    """Working memory of one run, or of a forward and its backward, and the calls that plans have bound to it."""

    def __init__(self, nbytes: int, device: torch.device) -> None:
        self.memory, self.nbytes, self.pool = empty(nbytes, device), nbytes, Pool()
        self.bound: WeakKeyDictionary[object, object] = WeakKeyDictionary()


class Blocks:
    """A pool of blocks: as many as were in use at one time, each as large as the largest plan.

    In use is a block while a run lasts, or from a forward until its backward. So runs of several threads share nothing
    that is written, and one thread after the other finds the same block with its calls bound already.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._free: list[Block] = []
        self._largest = 0
        self._lock = Lock()

    def take(self, nbytes: int) -> Block:
        """Return a block of at least `nbytes` that nobody else uses."""
        try:
            while True:
                block = self._free.pop()  # a list gives each of its items to one thread
                if block.nbytes >= nbytes:
                    return block
                # Too small for what is to come: it goes before a larger one is made.
                del block
        except IndexError:
            return self._new(nbytes)

    def _new(self, nbytes: int) -> Block:
        with self._lock:
            self._largest = max(self._largest, nbytes)
            with torch.inference_mode(False):
                return Block(self._largest, self.device)

    def give(self, block: Block) -> None:
        """Take a block back."""
        self._free.append(block)

    @contextmanager
    def taken(self, nbytes: int) -> Iterator[Block]:
        """Have a block of at least `nbytes` for oneself."""
        block = self.take(nbytes)
        try:
            yield block
        finally:
            self.give(block)

    def nbytes(self) -> int:
        """Bytes of the blocks that lie idle."""
        return sum(block.memory.numel() for block in self._free)
