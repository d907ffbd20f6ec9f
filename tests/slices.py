"""A long list in parts, by a text such as "2/3"."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeVar

__all__ = ["sliced"]

Item = TypeVar("Item")


def sliced(items: Sequence[Item], part: str) -> list[Item]:
    """Return the k-th of n parts of a list, every n-th from the k-th on: "1/3", "2/3" and "3/3" are all of it.

    Raises:
        ValueError: it is no such text.
    """
    match = re.fullmatch(r"(\d+)/(\d+)", part)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise ValueError(f"{part!r} is no part: write 1/3, 2/3 or 3/3")
    return list(items[int(match[1]) - 1 :: int(match[2])])
