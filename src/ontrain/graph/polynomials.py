"""Numbers that depend on sizes, read off from their values at a few sizes."""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

__all__ = ["Polynomial", "Sizes", "evaluated", "fit", "free_sizes", "sample_sizes", "written"]

Sizes = Mapping[str, int]
Polynomial = tuple[tuple[tuple[str, ...], Fraction], ...]
"""Terms (symbols, coefficient), of degree one in each symbol: 3·batch·length + 1 is
((), 1), (("batch", "length"), 3). A number that does not vary has at most the term without symbols."""

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
    corners = [dict(zip(symbols, one, strict=True)) for one in itertools.product(*([low[s], high[s]] for s in symbols))]
    even = [n for n in range(_NEAR, 1000, 2) if n not in taken]
    return [*corners, *(dict(zip(symbols, [n for n in even if n >= at], strict=False)) for at in (_NEAR, _FAR))]


def free_sizes(taken: set[int]) -> list[int]:
    """Return prime numbers that can stand for sizes, without those that mean something else in the graph."""
    return [n for n in _PRIMES if n not in taken]


def fit(values: Sequence[float], points: Sequence[Sizes]) -> Polynomial | None:
    """Return the polynomial with these values at the points of `sample_sizes`; None if there is none.

    The last point may be left out. Whole numbers are fitted exactly. Others are a multiple of one product of sizes,
    or have whole coefficients, to single precision.
    """
    symbols = list(points[0])
    corners = 2 ** len(symbols)
    numbers = [Fraction(value) for value in values]
    exact = all(isinstance(value, int) for value in values)
    if not exact:
        for count in range(len(symbols) + 1):
            for key in itertools.combinations(sorted(symbols), count):
                one = {key: numbers[0] / _product(key, points[0])}
                found = _checked(one, numbers, points, tolerance=_SINGLE)
                if found is not None:
                    return found
    terms = _interpolate(numbers[:corners], symbols, points[0], points[corners - 1])
    if not exact:
        terms = {key: Fraction(round(c)) for key, c in terms.items()}
    return _checked(terms, numbers, points, tolerance=Fraction(0) if exact else _SINGLE)


def written(polynomial: Polynomial) -> str | None:
    """Return a polynomial as a dimension's name states it, "64*batch + 1"; None where a coefficient is not natural."""
    if any(c.denominator != 1 or c < 0 for _, c in polynomial):
        return None
    terms = ["*".join([str(c)] * (c != 1 or not key) + list(key)) for key, c in sorted(polynomial, reverse=True)]
    return " + ".join(terms) or "0"


def evaluated(text: str, sizes: Sizes) -> int | None:
    """Return what a dimension's name such as "64*batch + 1" stands for at some sizes.

    None if it is no sum or product of whole numbers and of these sizes; exporters write such names, too.
    """
    if text in sizes:
        return sizes[text]
    try:
        return _value(ast.parse(text, mode="eval").body, sizes)
    except (SyntaxError, KeyError, TypeError, ValueError, RecursionError):
        return None


def _value(tree: ast.expr, sizes: Sizes) -> int:
    match tree:
        case ast.Constant(value=int(number)):
            return number
        case ast.Name(id=name):
            return sizes[name]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _value(left, sizes) + _value(right, sizes)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _value(left, sizes) * _value(right, sizes)
    raise ValueError


def _checked(
    terms: Mapping[tuple[str, ...], Fraction], numbers: Sequence[Fraction], points: Sequence[Sizes],
    *, tolerance: Fraction,
) -> Polynomial | None:  # fmt: skip
    for number, point in zip(numbers, points, strict=True):
        made = sum(c * _product(key, point) for key, c in terms.items())
        if abs(made - number) > abs(number) * tolerance:
            return None
    return tuple((key, c) for key, c in sorted(terms.items()) if c)


def _product(key: tuple[str, ...], point: Sizes) -> int:
    return math.prod(point[s] for s in key)


def _interpolate(
    values: Sequence[Fraction], symbols: Sequence[str], low: Sizes, high: Sizes
) -> dict[tuple[str, ...], Fraction]:
    """Newton's scheme, one symbol after the other; values in the order of `sample_sizes`, the last symbol fastest."""
    if not symbols:
        return {(): values[0]}
    first, others, half = symbols[0], symbols[1:], len(values) // 2
    at_low = _interpolate(values[:half], others, low, high)
    at_high = _interpolate(values[half:], others, low, high)
    found: dict[tuple[str, ...], Fraction] = {}
    for key, value in at_low.items():
        slope = (at_high[key] - value) / (high[first] - low[first])
        found[key] = value - slope * low[first]
        found[tuple(sorted((first, *key)))] = slope
    return found
