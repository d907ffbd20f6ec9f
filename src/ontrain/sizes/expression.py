"""A size in terms of others: exact, hashable, and the same object for the same polynomial however it was written."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

from ontrain.sizes.functions import FUNCTIONS, INFIX

__all__ = ["Call", "Number", "Size"]

Number: TypeAlias = int | Fraction


@dataclass(frozen=True)
class Call:
    """A function of sizes, by its name in `FUNCTIONS`."""

    name: str
    arguments: tuple[Size, ...]

    def value(self, sizes: Mapping[str, int]) -> Number:
        """Return the function's value; a condition's is a bool."""
        value: Number = FUNCTIONS[self.name](*(argument.value(sizes) for argument in self.arguments))
        return value

    def text(self, names: Mapping[str, str]) -> str:
        """Return the call in Python's words."""
        if self.name in INFIX:
            space = "" if self.name in ("//", "**") else " "
            return f"{space}{self.name}{space}".join(a.text(names, inner=True) for a in self.arguments)
        return f"{self.name}({', '.join(a.text(names) for a in self.arguments)})"


Factor: TypeAlias = str | Call


@dataclass(frozen=True)
class Size:
    """A polynomial with rational coefficients; its variables are symbols and calls of functions.

    `2*batch*length + 1`, `(length + 1)//2` and, for a guard, `length <= 512` are sizes. Two that are the same
    polynomial are equal. Operators take sizes and exact numbers.

    Attributes:
        terms: factors and coefficient of each product, in the order in which they are printed. The factors are sorted;
            a square has its factor twice. No coefficient is zero, and the one that is whole is an int.
    """

    terms: tuple[tuple[tuple[Factor, ...], Number], ...]

    @classmethod
    def of(cls, terms: Iterable[tuple[Iterable[Factor], Number]]) -> Size:
        """Return a sum of products, in any order."""
        sums: dict[tuple[Factor, ...], Number] = {}
        for factors, coefficient in terms:
            key = tuple(sorted(factors, key=_order))
            sums[key] = sums.get(key, 0) + coefficient
        return cls(
            tuple(
                (key, sums[key] if sums[key].denominator != 1 else int(sums[key]))
                for key in sorted(sums, key=lambda key: (-len(key), [_order(factor) for factor in key]))
                if sums[key]
            )
        )

    @classmethod
    def number(cls, number: Number) -> Size:
        """Return a number as a size."""
        return cls.of([((), number)])

    @classmethod
    def symbol(cls, name: str) -> Size:
        """Return the size that is called so."""
        return cls((((name,), 1),))

    @classmethod
    def call(cls, name: str, *arguments: Size | Number) -> Size:
        """Return a function of sizes; its value where all of them are numbers, a float as the fraction that it is.

        What the divisor divides is taken out of a quotient and a remainder: (2*n + 1)//n is 2 + 1//n.
        """
        sizes = tuple(_size(argument) for argument in arguments)
        if name in ("//", "%"):
            whole, rest = _divided(*sizes)
            if not rest.terms:
                return rest if name == "%" else whole
            if rest != sizes[0]:
                remainder = cls.call(name, rest, sizes[1])
                return remainder if name == "%" else whole + remainder
        numbers = [size.as_number for size in sizes]
        if None not in numbers and not (name in ("//", "%", "/") and numbers[1] == 0):
            value = FUNCTIONS[name](*numbers)
            if isinstance(value, int | Fraction) or (name in ("/", "float") and math.isfinite(value)):
                return cls.number(Fraction(value))
        return cls((((Call(name, sizes),), 1),))

    @property
    def as_number(self) -> Number | None:
        """The number that it is, whatever the symbols are; None if it depends on them."""
        if not self.terms:
            return 0
        factors, coefficient = self.terms[0]
        return None if factors else coefficient

    @property
    def as_symbol(self) -> str | None:
        """The name, if it is a symbol alone."""
        factor = self._factor
        return factor if isinstance(factor, str) else None

    @property
    def is_dimension(self) -> bool:
        """Whether it is a sum of products of natural numbers and symbols, as dimensions in files are stated."""
        return all(isinstance(c, int) and c > 0 and not any(isinstance(f, Call) for f in key) for key, c in self.terms)

    @property
    def _factor(self) -> Factor | None:
        if len(self.terms) == 1 and self.terms[0][1] == 1 and len(self.terms[0][0]) == 1:
            return self.terms[0][0][0]
        return None

    def symbols(self) -> set[str]:
        """Return the names of all symbols inside."""
        names: set[str] = set()
        for factors, _ in self.terms:
            for factor in factors:
                names.update(
                    (factor,) if isinstance(factor, str) else (s for a in factor.arguments for s in a.symbols())
                )
        return names

    def value(self, sizes: Mapping[str, int]) -> Number:
        """Return the number, or for a condition the truth value, at sizes of all symbols.

        It is what Python computes: exact among whole numbers and fractions, a float from the first float on.
        """
        total: Number = 0
        for factors, coefficient in self.terms:
            for factor in factors:
                coefficient *= sizes[factor] if isinstance(factor, str) else factor.value(sizes)
            total += coefficient
        return total

    def substitute(self, sizes: Mapping[str, Size]) -> Size:
        """Return it with other sizes in the place of symbols."""

        def of_factor(factor: Factor) -> Size:
            if isinstance(factor, str):
                return sizes.get(factor, Size.symbol(factor))
            return Size.call(factor.name, *(argument.substitute(sizes) for argument in factor.arguments))

        return self.mapped(of_factor)

    def mapped(self, of_factor: Callable[[Factor], Size]) -> Size:
        """Return the same sum of products of other factors."""
        total = Size(())
        for factors, coefficient in self.terms:
            product = Size.number(coefficient)
            for factor in factors:
                product *= of_factor(factor)
            total += product
        return total

    def __add__(self, other: Size | Number) -> Size:
        return Size.of((*self.terms, *_size(other).terms))

    def __mul__(self, other: Size | Number) -> Size:
        return Size.of(((*f, *g), c * d) for f, c in self.terms for g, d in _size(other).terms)

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> Size:
        return self * -1

    def __sub__(self, other: Size | Number) -> Size:
        return self + _size(other) * -1

    def __rsub__(self, other: Number) -> Size:
        return -self + other

    def __floordiv__(self, other: Size | Number) -> Size:
        return Size.call("//", self, other)

    def __mod__(self, other: Size | Number) -> Size:
        return Size.call("%", self, other)

    def __rmod__(self, other: Number) -> Size:
        return Size.call("%", other, self)

    def __str__(self) -> str:
        return self.text({})

    def text(self, names: Mapping[str, str], *, inner: bool = False) -> str:
        """Return it in Python's words, "64*batch + 1", with other names for its symbols."""
        factor = self._factor
        if isinstance(factor, Call) and not inner:
            return factor.text(names)
        text = " + ".join(_product(factors, c, names) for factors, c in self.terms).replace("+ -", "- ") or "0"
        number = self.as_number
        plain = factor is not None or (isinstance(number, int) and number >= 0)
        return f"({text})" if inner and not plain else text


def _size(value: Size | Number) -> Size:
    return value if isinstance(value, Size) else Size.number(value)


def _order(factor: Factor) -> tuple[bool, str]:
    return isinstance(factor, Call), _factor_text(factor, {})


def _factor_text(factor: Factor, names: Mapping[str, str]) -> str:
    if isinstance(factor, str):
        return names.get(factor, factor)
    return f"({factor.text(names)})" if factor.name in INFIX else factor.text(names)


def _product(factors: tuple[Factor, ...], coefficient: Number, names: Mapping[str, str]) -> str:
    texts = [_factor_text(factor, names) for factor in factors]
    if coefficient == -1 and texts:
        return "-" + "*".join(texts)
    return "*".join([str(coefficient)] * (coefficient != 1 or not texts) + texts)


def _divided(size: Size, divisor: Size) -> tuple[Size, Size]:
    """Whole quotient and rest of what a divisor of one term divides for all sizes that are whole."""
    if len(divisor.terms) != 1 or not _is_whole(divisor):
        return Size(()), size
    by, count = divisor.terms[0]
    wholes, rests = [], []
    for factors, coefficient in size.terms:
        left = Counter(factors)
        left.subtract(by)
        product = Size(((factors, coefficient),))
        if min(left.values(), default=0) >= 0 and coefficient % count == 0 and _is_whole(product):
            wholes.append((left.elements(), coefficient // count))
        else:
            rests.append((factors, coefficient))
    return Size.of(wholes), Size.of(rests)


def _is_whole(size: Size) -> bool:
    return all(
        isinstance(c, int) and all(isinstance(f, str) or f.name in ("//", "%") for f in key) for key, c in size.terms
    )
