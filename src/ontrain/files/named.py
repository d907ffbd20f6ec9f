"""Searches bytes for texts of a message that are one of some names, for all names at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

__all__ = ["Names"]

_CHUNK = 1 << 17
"""Bytes looked at in a row: what is computed of them stays in the processor's cache."""
_LETTERS = 3
"""Letters by which places are told apart before names are compared; the shortest name has as many."""


class Names:
    """Names that begin with a letter and have 3 to 127 letters, as protobuf writes a text: behind its length.

    So a longer text in which a name occurs is none. A length is also read that has more bytes than it needs: the last
    of them is zero then.

    Args:
        names: what is searched for.
    """

    def __init__(self, names: Iterable[bytes]) -> None:
        self._names = tuple(sorted(names))
        self._longest = max(map(len, self._names))
        self._starts = np.array(sorted({int.from_bytes(name[:_LETTERS]) for name in self._names}), np.uint32)

    def places(self, content: bytes) -> Iterator[tuple[bytes, int]]:
        """Yield the names among the texts in these bytes, each with where it ends."""
        for start in range(0, len(content), _CHUNK):
            for at in self._begun(content, start):
                length = content[at - 1]
                for name in self._names:
                    if length in (0, len(name)) and content.startswith(name, at):
                        yield name, at + len(name)

    def _begun(self, content: bytes, start: int) -> list[int]:
        """Where the first letters of a name follow what may be a length, of lengths in a chunk."""
        last = min(_CHUNK, len(content) - start - _LETTERS)
        if last <= 0:
            return []
        read = np.frombuffer(content, np.uint8, last + _LETTERS, start)
        length, first = read[:last], read[1 : last + 1]
        (places,) = np.nonzero((length <= self._longest) & ((first | 32) - np.uint8(ord("a")) < 26))
        keys: np.ndarray[Any, np.dtype[Any]] = np.zeros(len(places), np.uint32)
        for i in range(1, _LETTERS + 1):
            keys = keys << 8 | read[places + i]
        nearest = self._starts[self._starts.searchsorted(keys) % len(self._starts)]
        return [start + 1 + place for place in places[nearest == keys].tolist()]
