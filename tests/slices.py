"""A long list in parts, by a text such as "2/3"."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeVar

__all__ = ["beginning_elsewhere", "sliced"]

Item = TypeVar("Item")
_GOLDEN = 0.6180339887
"""Places that are so far apart on a circle leave no large gap between them, however many there are."""


def sliced(items: Sequence[Item], part: str) -> list[Item]:
    """Return the k-th of n parts of a list, every n-th from the k-th on: "1/3", "2/3" and "3/3" are all of it.

    Raises:
        ValueError: it is no such text.
    """
    match = re.fullmatch(r"(\d+)/(\d+)", part)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise ValueError(f"{part!r} is no part: write 1/3, 2/3 or 3/3")
    return list(items[int(match[1]) - 1 :: int(match[2])])


def beginning_elsewhere(items: Sequence[Item], turn: int) -> list[Item]:
    """Return the list from another place on at each turn, and then what stands before that place.

    What the clock cuts off the end of one turn stands in front at a later one.
    """
    start = int(len(items) * (turn * _GOLDEN % 1))
    return [*items[start:], *items[:start]]
