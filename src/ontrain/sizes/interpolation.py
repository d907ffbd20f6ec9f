"""Numbers that depend on sizes, from their values at sizes that were chosen to tell them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

from ontrain.sizes.expression import Size

__all__ = ["Sizes", "fit", "free_sizes", "sample_sizes"]

Sizes = Mapping[str, int]

_SINGLE = Fraction(1, 10**6)
_PRIMES = tuple(n for n in range(7, 600) if all(n % d for d in range(2, math.isqrt(n) + 1)))
_NEAR, _FAR = 12, 94


def sample_sizes(symbols: Sequence[str], taken: set[int]) -> list[dict[str, int]]:
    """Return the sizes to look at: all combinations of two primes per symbol, then two to check the result by.

    The checks are of even sizes, so that no half that was rounded down goes for a polynomial; the second lies far off,
    so that other quotients do not either.

    Args:
        symbols: names of the sizes that vary.
        taken: numbers that mean something else in the graph; none of them is chosen.
    """
    if not symbols:
        return [{}]
    primes = free_sizes(taken)
    low, high = (dict(zip(symbols, primes[i::2], strict=False)) for i in range(2))
    corners = [
        dict(zip(symbols, corner, strict=True)) for corner in itertools.product(*([low[s], high[s]] for s in symbols))
    ]
    even = [n for n in range(_NEAR, 1000, 2) if n not in taken]
    return [*corners, *(dict(zip(symbols, [n for n in even if n >= at], strict=False)) for at in (_NEAR, _FAR))]


def free_sizes(taken: set[int]) -> list[int]:
    """Return prime numbers that can stand for sizes, without those that mean something else in the graph."""
    return [n for n in _PRIMES if n not in taken]


def fit(values: Sequence[float], points: Sequence[Sizes]) -> Size | None:
    """Return the polynomial with these values at the points of `sample_sizes`; None if there is none.

    It is of degree one in each symbol. The last point may be left out. Whole numbers are fitted exactly. Others are a
    multiple of one product of sizes, or have whole coefficients, to single precision.
    """
    symbols = list(points[0])
    corners = 2 ** len(symbols)
    numbers = [Fraction(value) for value in values]
    if all(isinstance(value, int) for value in values):
        return _checked(_interpolated(numbers[:corners], symbols, points[0], points[corners - 1]), numbers, points)
    for count in range(len(symbols) + 1):
        for key in itertools.combinations(sorted(symbols), count):
            multiple = _near_whole(numbers[0] / math.prod(points[0][symbol] for symbol in key))
            size = _checked(Size.of([(key, multiple)]), numbers, points, tolerance=_SINGLE)
            if size is not None:
                return size
    size = _interpolated(numbers[:corners], symbols, points[0], points[corners - 1])
    return _checked(Size.of((key, round(c)) for key, c in size.terms), numbers, points, tolerance=_SINGLE)


def _checked(
    size: Size, numbers: Sequence[Fraction], points: Sequence[Sizes], *, tolerance: Fraction = Fraction(0)
) -> Size | None:
    pairs = zip(numbers, points, strict=True)
    return size if all(abs(size.value(point) - n) <= abs(n) * tolerance for n, point in pairs) else None


def _near_whole(number: Fraction) -> Fraction:
    """The whole number that a multiple read off floats lies a hair beside."""
    whole = Fraction(round(number))
    return whole if abs(number - whole) <= abs(number) * _SINGLE else number


def _interpolated(values: Sequence[Fraction], symbols: Sequence[str], low: Sizes, high: Sizes) -> Size:
    """Newton's scheme, one symbol after the other; values in the order of `sample_sizes`, the last symbol fastest."""
    if all(value == values[0] for value in values):
        return Size.number(values[0])
    first, others, half = symbols[0], symbols[1:], len(values) // 2
    at_low = _interpolated(values[:half], others, low, high)
    slope = (_interpolated(values[half:], others, low, high) - at_low) * Fraction(1, high[first] - low[first])
    return at_low + slope * (Size.symbol(first) - low[first])
