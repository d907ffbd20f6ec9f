"""Graphs that differ in their sizes only: what a few of them were, others between them are."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.graph.fits import ConstantRule, constant_rule
from ontrain.graph.sheet import Sheet, UnreadableError, read, write
from ontrain.sizes import Features, NumberRule, UnfitError

__all__ = ["Bound", "Family"]

_MOST = 96
"""Graphs of one structure that are remembered: enough for four sizes that vary and their products, or for one size and
each rest that it may leave by 16."""
_PERIODS = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class Bound:
    """A graph at the sizes asked for, and the numbers that were learned beside the graphs."""

    model: ir.Model
    beside: tuple[int, ...]


@dataclass
class _Alike:
    """Graphs of one structure."""

    model: ir.Model
    sizes: list[tuple[int, ...]] = field(default_factory=list)
    sheets: list[Sheet] = field(default_factory=list)
    beside: list[tuple[int, ...]] = field(default_factory=list)
    rules: dict[tuple[int, ...], _Rules | None] = field(default_factory=dict)
    """By the places of graphs, what these tell."""
    lowest: list[int] = field(default_factory=list)
    highest: list[int] = field(default_factory=list)

    def add(self, sizes: tuple[int, ...], sheet: Sheet, beside: tuple[int, ...]) -> None:
        """Remember a graph."""
        numbers = _with_differences(sizes)
        self.lowest = list(map(min, self.lowest or numbers, numbers))
        self.highest = list(map(max, self.highest or numbers, numbers))
        self.sheets.append(sheet.sharing(self.sheets[0]) if self.sheets else sheet)
        self.sizes.append(sizes)
        self.beside.append(beside)
        self.rules.clear()

    def covers(self, sizes: Sequence[int]) -> bool:
        """Whether each size, and each difference of two, lies between those seen."""
        return _between(self.lowest, sizes, self.highest)

    def bind(self, sizes: tuple[int, ...]) -> Bound | None:
        """Return the graph at covered sizes, as all graphs tell it, or those of the same rest by a power of two."""
        tried: tuple[int, ...] = ()
        for period in _PERIODS:
            rest = [size % period for size in sizes]
            places = tuple(i for i, seen in enumerate(self.sizes) if [size % period for size in seen] == rest)
            if not places or places == tried:
                continue
            tried = places
            if len(places) < len(self.sizes):  # of all of them the caller has looked
                numbers = np.array([_with_differences(self.sizes[i]) for i in places])
                if not _between(numbers.min(0), sizes, numbers.max(0)):
                    break
            if places not in self.rules:
                self.rules[places] = _rules(self, places)
            rules = self.rules[places]
            if rules is not None:
                with suppress(UnfitError):
                    return rules.bind(sizes)
        return None


class Family:
    """Plans, say, of one model at many sizes. Threads may not share it without a lock.

        learn((32, 23), graph)   Reshape(x, [736])      learn((32, 21), graph)   Reshape(x, [672])   …
    →   bind((32, 22))           Reshape(x, [704])

    A graph is bound where graphs of one structure were learned on all sides of its sizes, where these tell each number
    and constant in it exactly, as a polynomial in the sizes or as a corner of a larger constant, with more graphs than
    that takes; and where no graph of another structure was met between them. Two sizes that were always equal have to
    be equal. Of a network that halves its images, rounding up or down, such polynomials hold among sizes that leave the
    same rest by 2, 4 or more.
    """

    def __init__(self) -> None:
        self._alike: dict[tuple[tuple[int, ...], int, Hashable], _Alike] = {}
        self._unreadable = False

    def learn(self, sizes: Sequence[int], model: ir.Model, beside: Sequence[int] = ()) -> None:
        """Remember what a graph is at some sizes.

        Args:
            sizes: all that the graph depends on.
            model: of concrete shapes; it must not be changed afterwards.
            beside: other numbers that go with it.
        """
        if self._unreadable:
            return
        try:
            sheet = read(model)
        except UnreadableError:
            self._unreadable = True
            return
        sizes = tuple(sizes)
        key = (_equalities(sizes), len(beside), sheet.structure)
        alike = self._alike.setdefault(key, _Alike(model))
        if sizes not in alike.sizes and len(alike.sizes) < _MOST:
            alike.add(sizes, sheet, tuple(beside))

    def bind(self, sizes: Sequence[int]) -> Bound | None:
        """Return the graph at other sizes; None where what was learned does not tell it."""
        sizes = tuple(sizes)
        equal = [alike for (equalities, *_), alike in self._alike.items() if equalities == _equalities(sizes)]
        around = [alike for alike in equal if alike.covers(sizes)]
        if len(around) != 1:
            return None
        (alike,) = around
        if any(alike.covers(seen) for other in equal if other is not alike for seen in other.sizes):
            return None  # a graph of another structure was met between those of this one
        return alike.bind(sizes)


@dataclass(frozen=True)
class _Rules:
    model: ir.Model
    features: Features
    numbers: NumberRule
    count: int
    constants: list[tuple[list[int], ConstantRule]]
    """Places in the sheet, and what stands there."""

    def bind(self, sizes: tuple[int, ...]) -> Bound:
        self.features.check(sizes)
        numbers = self.numbers.at(sizes).tolist()
        arrays = dict[int, np.ndarray[Any, Any]]()
        for places, rule in self.constants:
            arrays.update(dict.fromkeys(places, rule(sizes)))
        return Bound(write(self.model, numbers[: self.count], arrays), tuple(numbers[self.count :]))


def _rules(alike: _Alike, graphs: Sequence[int]) -> _Rules | None:
    """What some of the graphs tell, by their places."""
    try:
        features = Features(np.array([alike.sizes[i] for i in graphs], np.int64))
        if len(graphs) < len(alike.sheets) and not features.each_is_checked():
            return None  # of many choices of graphs one may fit by chance
        sheets = [alike.sheets[i] for i in graphs]
        rows = [(*sheet.numbers, *alike.beside[i]) for i, sheet in zip(graphs, sheets, strict=True)]
        numbers = features.rule(np.array(rows, np.int64))
        sites: dict[tuple[int, ...], list[int]] = {}  # of what is one constant in each of the graphs
        for place, values in enumerate(zip(*(sheet.constants for sheet in sheets), strict=True)):
            sites.setdefault(tuple(map(id, values)), []).append(place)
        constants = []
        for places in sites.values():
            tensors = [sheet.constants[places[0]] for sheet in sheets]
            if any(tensor is not tensors[0] for tensor in tensors):
                constants.append((places, constant_rule([tensor.numpy() for tensor in tensors], features)))
    except UnfitError:
        return None
    return _Rules(alike.model, features, numbers, len(sheets[0].numbers), constants)


def _between(lowest: Sequence[int], sizes: Sequence[int], highest: Sequence[int]) -> bool:
    bounds = zip(lowest, _with_differences(sizes), highest, strict=True)
    return all(low <= number <= high for low, number, high in bounds)


def _with_differences(sizes: Sequence[int]) -> list[int]:
    return [*sizes, *(first - second for first, second in combinations(sizes, 2))]


def _equalities(sizes: Sequence[int]) -> tuple[int, ...]:
    """For each size the first that is equal to it."""
    return tuple(sizes.index(size) for size in sizes)
