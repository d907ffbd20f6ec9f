"""A mapping that holds what was used last, and forgets the rest."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TypeVar

from ontrain.locks import Lock

__all__ = ["Recent"]

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Recent(OrderedDict[Key, Value]):
    """Holds at most `size` entries; the one whose last look or write is longest ago goes first.

    Threads may look and put at the same time.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size, self._lock = size, Lock()

    def look(self, key: Key) -> Value | None:
        """Return an entry and count that as a use; None if there is none."""
        with self._lock:
            value = self.get(key)
            if value is not None:
                self.move_to_end(key)
            return value

    def forget(self, is_stale: Callable[[Key], bool]) -> None:
        """Take out the entries whose keys are stale."""
        with self._lock:
            for key in [key for key in self if is_stale(key)]:
                del self[key]

    def put(self, key: Key, value: Value) -> Value:
        """Add or replace an entry, and return it."""
        with self._lock:
            self[key] = value
            self.move_to_end(key)
            while len(self) > self._size:
                self.popitem(last=False)
            return value
