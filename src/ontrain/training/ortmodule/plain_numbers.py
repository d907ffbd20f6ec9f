"""Numbers among a call's arguments that are no tensors, and so part of a graph: each other value is captured anew."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from ontrain.training.ortmodule.key import walk

__all__ = ["PlainNumbers"]

_MANY_CAPTURES = 8


class PlainNumbers:
    """Counts the captures of a module whose arguments differ in plain numbers alone.

    Args:
        kind: the class of the module.

    Attributes:
        are_told: whether a warning was given.
    """

    def __init__(self, kind: str) -> None:
        self._kind, self._keys = kind, defaultdict[Hashable, set[Hashable]](set)
        self.are_told = False

    def count(self, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        """Count one more capture, for a call with these arguments.

        Warns:
            UserWarning: numbers differ for the eighth time in one structure.
        """
        if self.are_told:
            return
        key: list[Any] = [len(args), *kwargs]
        for value in (*args, *kwargs.values()):
            walk(value, [], key)
        alike = tuple([None if isinstance(part, int | float) else part for part in key])
        self._keys[alike].add(tuple(key))
        if len(self._keys[alike]) == _MANY_CAPTURES:
            self.are_told = True
            warnings.warn(
                f"{self._kind} was captured {_MANY_CAPTURES} times for one structure of arguments: "
                "plain numbers are part of a graph. Pass numbers that change as tensors.",
                stacklevel=8,
            )
