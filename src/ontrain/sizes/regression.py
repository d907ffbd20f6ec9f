"""Numbers of many graphs at once, as polynomials in the sizes that these graphs happened to have."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

__all__ = ["Features", "NumberRule", "UnfitError"]

Array = np.ndarray[Any, Any]

_DEGREE, _CHECKS, _DISTINCT = 2, 2, 4
"""The degree of polynomials that are looked for, how many graphs more than they have terms have to be seen, and how
many values of each size: what is no such polynomial, as batch·length², then does not go for one."""
_DENOMINATOR, _MOST = 4096, 1 << 40
"""What coefficients are looked for: beyond, arithmetic on 64 bits would overflow."""


class UnfitError(Exception):
    """No rule fits what was seen, or the rule says nothing about these sizes."""


class Features:
    """Products of the sizes that vary by themselves, in which numbers are looked for.

    A size that is a polynomial in those before it, as 4·length − 4, is none of them; it has to be so at other sizes.

    Args:
        samples: sizes of each graph, [graphs, sizes].

    Raises:
        UnfitError: too few graphs tell the sizes apart.
    """

    def __init__(self, samples: Array) -> None:
        self.samples = samples
        self.varying: list[int] = []
        self._terms: list[tuple[int, ...]] = []
        self._matrix = np.zeros((len(samples), 0), np.int64)
        self._dependent: list[tuple[int, NumberRule]] = []
        for place in np.flatnonzero((samples != samples[0]).any(0)).tolist():
            try:
                self._dependent.append((place, self.rule(samples[:, place : place + 1])))
            except UnfitError:
                self.varying.append(place)
                self._terms = self._find_terms()
        if not self._terms and self.varying:
            raise UnfitError("too few sizes were seen")

    def check(self, sizes: Sequence[int]) -> None:
        """Raise UnfitError if a size is not what it always was in terms of the others."""
        for place, rule in self._dependent:
            if rule.at(sizes)[0] != sizes[place]:
                raise UnfitError("two sizes go together otherwise than in what was seen")

    def _find_terms(self) -> list[tuple[int, ...]]:
        """All products of up to two sizes, if the samples tell every polynomial in them from every other; else none.

        Fewer terms are never tried: a few values of batch·length may well lie on a plane.
        """
        terms = [
            term for count in range(_DEGREE + 1)
            for term in itertools.combinations_with_replacement(self.varying, count)
        ]  # fmt: skip
        few = any(len(np.unique(self.samples[:, place])) < _DISTINCT for place in self.varying)
        if few or len(self.samples) < len(terms) + _CHECKS:
            return []
        self._matrix = np.stack([self._column(self.samples, term) for term in terms], 1)
        scaled = self._matrix / np.abs(self._matrix).max(0)
        return terms if np.linalg.matrix_rank(scaled) == len(terms) else []

    def each_is_checked(self) -> bool:
        """Whether the others tell what each graph is: one that alone settles a term would fit whatever it is."""
        if not self._terms:
            return True
        orthogonal, _ = np.linalg.qr(self._matrix / np.abs(self._matrix).max(0))
        return bool((np.square(orthogonal).sum(1) < 1 - 1e-6).all())

    @staticmethod
    def _column(samples: Array, term: Sequence[int]) -> Array:
        column: Array = np.prod(samples[:, list(term)], axis=1, dtype=np.int64)
        return column

    def rule(self, values: Array) -> NumberRule:
        """Return what values at the samples, int64 [graphs, numbers], are at any sizes.

        Raises:
            UnfitError: a number is no polynomial of the second degree in the sizes.
        """
        places = np.flatnonzero((values != values[0]).any(0))
        wanted = values[:, places]
        if len(places) and not self._terms:
            raise UnfitError("too few sizes were seen")
        numerators, denominators = _rational(self._solve(wanted.astype(np.float64)))
        exact = (self._matrix @ numerators == wanted * denominators).all(0)
        if not exact.all():
            raise UnfitError(f"{', '.join(map(str, wanted[:, ~exact][:, 0]))} is no polynomial in the sizes")
        return NumberRule(values[0], places, self._terms, numerators, denominators)

    def _solve(self, wanted: Array) -> Array:
        """Coefficients of the terms that come closest to float64 [graphs, numbers]."""
        scale = np.abs(self._matrix).max(0)
        solved: Array = np.linalg.lstsq(self._matrix / scale, wanted, rcond=None)[0] / scale[:, None]
        return solved

    def fraction(self, values: Array) -> Callable[[Sequence[int]], float]:
        """Return what floats at the samples are at any sizes: a polynomial, one over it, or one more than that.

        Coefficients are guessed and then have to give each value to the last bit.

        Raises:
            UnfitError: none of these.
        """
        wide = values.astype(np.float64)
        if (values == values[0]).all():
            return lambda sizes: float(values[0])
        if not self._terms:
            raise UnfitError("too few sizes were seen")
        for there, back in _FRACTIONS:
            with np.errstate(all="ignore"):
                numbers = there(wide)
            if not np.isfinite(numbers).all():
                continue
            solved = self._solve(numbers[:, None])[:, 0]
            for coefficients in (np.rint(solved), np.array([_near(c) for c in solved])):
                with np.errstate(all="ignore"):
                    if np.array_equal(back(self._matrix @ coefficients).astype(values.dtype), values):
                        return functools.partial(self._fraction_at, coefficients, back)
        raise UnfitError("a number in a constant is no polynomial in the sizes, nor one over it")

    def _fraction_at(self, coefficients: Array, back: Callable[[Any], Any], sizes: Sequence[int]) -> float:
        return float(back(_products(sizes, self._terms) @ coefficients))


_FRACTIONS: tuple[tuple[Callable[[Any], Any], Callable[[Any], Any]], ...] = (
    (lambda v: v, lambda n: n),
    (lambda v: 1 / v, lambda n: 1 / n),
    (lambda v: 1 / (v - 1), lambda n: 1 + 1 / n),
)


def _near(number: float) -> float:
    """The simplest fraction by a number that floats of single precision blur."""
    return float(Fraction(number).limit_denominator(64))


def _products(sizes: Sequence[int], terms: Sequence[tuple[int, ...]]) -> Array:
    return np.array([np.prod([sizes[i] for i in term], dtype=np.int64) for term in terms], np.int64)


def _rational(solved: Array) -> tuple[Array, Array]:
    """Coefficients as whole numerators over one denominator for each column."""
    numerators, denominators = np.zeros(solved.shape, np.int64), np.ones(solved.shape[1], np.int64)
    rounded = np.rint(solved)
    near = np.abs(solved - rounded) < 1e-6 * np.maximum(1, np.abs(solved))
    for column in range(solved.shape[1]):
        if not np.isfinite(solved[:, column]).all() or np.abs(solved[:, column]).max() > _MOST:
            continue
        if near[:, column].all():
            numerators[:, column] = rounded[:, column]
            continue
        parts = [Fraction(float(c)).limit_denominator(_DENOMINATOR) for c in solved[:, column]]
        denominator = math.lcm(*(part.denominator for part in parts))
        if any(abs(part * denominator) > _MOST for part in parts):
            continue  # zeros, which do not fit
        numerators[:, column] = [int(part * denominator) for part in parts]
        denominators[column] = denominator
    return numerators, denominators


@dataclass(frozen=True)
class NumberRule:
    """Whole numbers as polynomials in sizes: all the numbers of a graph at once, in arithmetic of arrays.

    Attributes:
        base: the numbers where they do not vary, int64 [numbers].
        places: where they do.
        terms: products of sizes, by the sizes' places.
        numerators: of the coefficients, int64 [terms, places].
        denominators: one for each number, int64 [places].
    """

    base: Array
    places: Array
    terms: Sequence[tuple[int, ...]]
    numerators: Array
    denominators: Array

    def at(self, sizes: Sequence[int]) -> Array:
        """Return the numbers.

        Raises:
            UnfitError: one of them is not whole.
        """
        sums = _products(sizes, self.terms) @ self.numerators
        if (sums % self.denominators).any():
            raise UnfitError("a number is not whole at these sizes")
        numbers = self.base.copy()
        numbers[self.places] = sums // self.denominators
        return numbers
