"""The cases that do not pass on the torch provider: lines "name: reason" of not_passing.txt."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

__all__ = ["BY_CHANCE", "is_chance", "not_passing", "prune"]

BY_CHANCE = "by chance: "

_PATH = Path(__file__).with_name("not_passing.txt")


def not_passing() -> dict[str, str]:
    """Return the reason by the name of the case."""
    rows = (line.partition(": ") for line in _PATH.read_text(encoding="utf-8").splitlines())
    return {name: reason for name, _, reason in rows}


def is_chance(reason: str) -> bool:
    """Whether a case may pass all the same: random bits are those expected, or a processor rounds as they were."""
    return reason.startswith(BY_CHANCE)


def prune(passing: Collection[str]) -> None:
    """Strike cases from the table."""
    rows = (f"{name}: {reason}\n" for name, reason in not_passing().items() if name not in passing or is_chance(reason))
    _PATH.write_text("".join(rows), encoding="utf-8")
