"""A row of the table: one name of torch's that ontrain uses and torch does not promise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["OLDEST", "TESTED", "Finding", "Row"]

OLDEST, TESTED = (2, 11), (2, 15)
"""The releases of torch that the tests run with, from the oldest to the newest."""


@dataclass(frozen=True)
class Row:
    """One name, and what hangs on it.

    Attributes:
        name: dotted, from "torch" on.
        purpose: what ontrain does with it.
        canary: given the object, tries whether it still does what is relied on, and raises if not; None where only
            being there matters.
        refuses: what does not work without it.
        replaced: it is replaced for a while, under this name.
        callers: public functions of Python by which a forward comes to it, for one whose loss torch would not notice:
            without it their calls are refused.
        of_instance: instances have it, and their class need not.
        since: the release of torch that brought it, if the oldest one lacks it.
        until: the last release that has it or calls it, if a later one has something else in its place.
        device: "cuda" if it can be tried on a GPU only.
    """

    name: str
    purpose: str
    canary: Callable[[Any], None] | None
    refuses: str
    replaced: bool = False
    callers: tuple[str, ...] = ()
    of_instance: bool = False
    since: tuple[int, int] = OLDEST
    until: tuple[int, int] | None = None
    device: str = "cpu"

    @property
    def attribute(self) -> str:
        """The last part of the name."""
        return self.name.rpartition(".")[2]


@dataclass(frozen=True)
class Finding:
    """What a check of a row found.

    Attributes:
        row: the row.
        state: "works", "there" (nothing was tried), "not tried" (no GPU), "of another release", "gone", or "changed".
        reason: for "gone" and "changed".
    """

    row: Row
    state: str
    reason: str = ""

    @property
    def holds(self) -> bool:
        """Whether what hangs on it can be used."""
        return self.state not in ("gone", "changed", "of another release")
