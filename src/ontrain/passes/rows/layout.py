"""Where the rows of a batch lie in a value: along which axes, and at which place of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["Layout", "Places", "reshaped"]

Places = np.ndarray[Any, Any]
"""int64 [rows]: for each row its place along one axis."""
_Fact = tuple[Hashable, tuple[int, ...], tuple[int, ...]]


class Layout:
    """For each axis of a value along which rows lie, the place of every row.

    Row r of a value [B, L, H] whose rows are the tokens lies at (r // L, r % L) of its first two axes. Axes of one
    place are left out, so that a value without any rows has an empty layout.

    Args:
        rows: how many rows there are.
        places: axis to places.
        facts: what is known of the same places already; layouts derived from one another share it.
    """

    def __init__(self, rows: int, places: Mapping[int, Places], facts: dict[_Fact, Any] | None = None) -> None:
        self.rows, self.places = rows, dict(sorted(places.items()))
        self._facts = {} if facts is None else facts

    @classmethod
    def leading(cls, dims: Sequence[int]) -> Layout:
        """Rows in order over the first `len(dims)` axes."""
        rows = math.prod(dims)
        coordinates = np.unravel_index(np.arange(rows), tuple(dims)) if rows else [np.zeros(0, np.int64)] * len(dims)
        return cls(rows, {a: p for a, (p, d) in enumerate(zip(coordinates, dims, strict=True)) if d != 1})

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Layout)
            and self.rows == other.rows
            and self.places.keys() == other.places.keys()
            and all(
                a is b or np.array_equal(a, b) for a, b in zip(self.places.values(), other.places.values(), strict=True)
            )
        )

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        return bool(self.places)

    @property
    def axes(self) -> set[int]:
        """The axes along which rows lie."""
        return set(self.places)

    def moved(self, to: Mapping[int, int]) -> Layout:
        """Return the layout with each axis renamed; axes that `to` lacks are dropped."""
        return self.derived({to[a]: p for a, p in self.places.items() if a in to})

    def derived(self, places: Mapping[int, Places]) -> Layout:
        """Return a layout of the same rows at other places."""
        return Layout(self.rows, places, self._facts)

    def recall(self, what: Hashable, find: Callable[[], Any]) -> Any:
        """Return what `find` gives, found once for these arrays of places: a model asks it hundreds of times."""
        arrays = tuple(self.places.values())
        key = (what, tuple(self.places), tuple(id(array) for array in arrays))
        if key not in self._facts:
            self._facts[key] = (arrays, find())  # the arrays with it, or another might get one's id
        return self._facts[key][1]

    def lead(self, shape: Sequence[int]) -> int | None:
        """Return how many leading axes hold the rows and nothing else; None if the rows lie otherwise."""
        if not self.places:
            return None
        count = max(self.places) + 1
        alone = all(a in self.places or shape[a] == 1 for a in range(count))
        return count if alone else None

    def flat(self, shape: Sequence[int]) -> Places:
        """Return each row's place among the leading axes taken as one."""
        count = self.lead(shape)
        assert count is not None, "rows lie along leading axes only"

        def find() -> Places:
            where = np.zeros(self.rows, np.int64)
            for axis in range(count):
                where = where * shape[axis] + self.places.get(axis, 0)
            return where

        places: Places = self.recall(("flat", tuple(shape[:count])), find)
        return places

    def injective(self, shape: Sequence[int]) -> bool:
        """Whether no two rows lie at one place."""
        sizes = [shape[a] for a in self.places]
        if math.prod(sizes) < self.rows:
            return False

        def find() -> bool:
            where = np.zeros(self.rows, np.int64)
            for size, places in zip(sizes, self.places.values(), strict=True):
                where = where * size + places
            return bool((np.bincount(where, minlength=1) <= 1).all())

        return bool(self.recall(("injective", tuple(sizes)), find))


def reshaped(layout: Layout, shape: Sequence[int], source: Sequence[int]) -> Layout | None:
    """Return where the rows of a reshaped value lay before.

    Args:
        layout: of the value of `shape`.
        shape: after the reshape.
        source: before it.

    Returns:
        None if an axis of the source mixes rows with something else.
    """
    reshaped: Layout | None = layout.recall((tuple(shape), tuple(source)), lambda: _reshaped(layout, shape, source))
    return reshaped


def _reshaped(layout: Layout, shape: Sequence[int], source: Sequence[int]) -> Layout | None:
    of_axes: dict[int, Places] = {}
    for before, after in _segments(source, shape):
        inside = [a for a in after if a in layout.places]
        if not inside:
            continue
        if any(a not in layout.places and shape[a] != 1 for a in after):
            return None
        where = np.zeros(layout.rows, np.int64)
        for axis in after:
            where = where * shape[axis] + layout.places.get(axis, 0)
        if len(after) == len(before) == 1:
            where = layout.places[after[0]]
        sizes = [source[a] for a in before]
        places = (where,) if len(before) == 1 else np.unravel_index(where, tuple(sizes))
        of_axes.update((a, p) for a, p, size in zip(before, places, sizes, strict=True) if size != 1)
    return layout.derived(of_axes)


def _segments(source: Sequence[int], shape: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Split two shapes of one size into the shortest runs of axes that hold equally many elements."""
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(source) or j < len(shape):
        before: list[int] = []
        after: list[int] = []
        left = right = 1
        while True:
            if i < len(source) and (left < right or not before):
                left *= source[i]
                before.append(i)
                i += 1
            elif j < len(shape) and (right < left or not after):
                right *= shape[j]
                after.append(j)
                j += 1
            else:
                break
            if left == right and (before or i >= len(source)) and (after or j >= len(shape)):
                break
        groups.append((before, after))
    return groups
