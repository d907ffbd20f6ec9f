"""Expressions of sizes as plain data: evaluated, printed and written to a file without sympy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import sympy  # type: ignore[import-untyped]

__all__ = ["Expression"]


def _product(*factors: Any) -> Any:
    return math.prod(factors)


_HEADS: dict[str, Callable[..., Any]] = {
    "Add": lambda *terms: sum(terms),
    "Mul": _product,
    "Pow": lambda base, exponent: Fraction(base) ** exponent,
    "PowByNatural": lambda base, exponent: base**exponent,
    "Mod": lambda a, b: a % b,
    "PythonMod": lambda a, b: a % b,
    "FloorDiv": lambda a, b: a // b,
    "CleanDiv": lambda a, b: a // b,
    "CeilDiv": lambda a, b: -(-a // b),
    "IntTrueDiv": lambda a, b: Fraction(a) / b,
    "floor": math.floor,
    "ceiling": math.ceil,
    "FloorToInt": math.floor,
    "CeilToInt": math.ceil,
    "TruncToInt": math.trunc,
    "ToFloat": lambda a: a,
    "Identity": lambda a: a,
    "Max": max,
    "Min": min,
    "Equality": lambda a, b: a == b,
    "Unequality": lambda a, b: a != b,
    "StrictLessThan": lambda a, b: a < b,
    "LessThan": lambda a, b: a <= b,
    "StrictGreaterThan": lambda a, b: a > b,
    "GreaterThan": lambda a, b: a >= b,
    "And": lambda *terms: all(terms),
    "Or": lambda *terms: any(terms),
    "Not": lambda a: not a,
}
_INFIX = {"Add": " + ", "Mul": "*", "Pow": "**", "PowByNatural": "**", "Mod": " % ", "PythonMod": " % ",
          "FloorDiv": "//", "CleanDiv": "//", "IntTrueDiv": "/", "Equality": " == ", "Unequality": " != ",
          "StrictLessThan": " < ", "LessThan": " <= ", "StrictGreaterThan": " > ", "GreaterThan": " >= ",
          "And": " and ", "Or": " or "}  # fmt: skip


@dataclass(frozen=True)
class Expression:
    """A number, a symbol, or a function of others.

    Attributes:
        head: "number", "symbol", a function's name in sympy or torch; or "sympy", for what has no place here.
        parts: the value, the symbol's name, the arguments, or sympy's expression.
    """

    head: str
    parts: tuple[Any, ...]

    @classmethod
    def of(cls, value: Any) -> Expression:
        """Return sympy's expression, or a number, as one of these."""
        expr = sympy.sympify(value)
        if expr.is_Symbol:
            return cls("symbol", (expr.name,))
        if expr is sympy.true or expr is sympy.false:
            return cls("number", (bool(expr), 1))
        if expr.is_Rational:
            return cls("number", (int(expr.p), int(expr.q)))
        if type(expr).__name__ in _HEADS:
            return cls(type(expr).__name__, tuple(cls.of(arg) for arg in expr.args))
        return cls("sympy", (expr,))

    @property
    def is_symbol(self) -> bool:
        """Whether it is a symbol alone."""
        return self.head == "symbol"

    def symbols(self) -> set[str]:
        """Return the names of all symbols inside."""
        if self.head == "sympy":
            return {one.name for one in self.parts[0].free_symbols}
        if self.head == "symbol":
            return {self.parts[0]}
        return {name for part in self._inside() for name in part.symbols()}

    def value(self, sizes: Mapping[str, int]) -> Any:
        """Return the number or truth value for sizes of all symbols."""
        if self.head == "symbol":
            return sizes[self.parts[0]]
        if self.head == "number":
            p, q = self.parts
            return p if q == 1 else Fraction(p, q)
        if self.head == "sympy":
            expr = self.parts[0]
            found = expr.xreplace({one: sympy.Integer(sizes[one.name]) for one in expr.free_symbols})
            return bool(found) if found in (sympy.true, sympy.false) else found
        return _HEADS[self.head](*(part.value(sizes) for part in self._inside()))

    def text(self, names: Mapping[str, str], *, inner: bool = False) -> str:
        """Return it in Python's words, with other names for its symbols."""
        if self.head == "symbol":
            return names.get(self.parts[0], self.parts[0])
        if self.head == "number":
            p, q = self.parts
            return str(p) if q == 1 else f"{p}/{q}"
        if self.head == "sympy":
            return str(self.parts[0])
        if self.head in _INFIX:
            text = _INFIX[self.head].join(part.text(names, inner=True) for part in self._inside())
            return f"({text})" if inner else text
        return f"{self.head}({', '.join(part.text(names) for part in self._inside())})"

    def plain(self) -> list[Any]:
        """Return it as lists, strings and numbers.

        Raises:
            TypeError: it has parts that only sympy understands.
        """
        if self.head == "sympy":
            raise TypeError(f"{self.parts[0]} is no expression of sizes that can be written down")
        return [self.head, *(part.plain() if isinstance(part, Expression) else part for part in self.parts)]

    @classmethod
    def from_plain(cls, plain: Any) -> Expression:
        """Return what `plain` gave.

        Raises:
            ValueError: it did not give this.
        """
        head, *parts = plain
        if head == "symbol" and len(parts) == 1 and isinstance(parts[0], str):
            return cls(head, (parts[0],))
        if head == "number" and len(parts) == 2 and all(isinstance(part, int) for part in parts) and parts[1]:
            return cls(head, tuple(parts))
        if head not in _HEADS:
            raise ValueError(f"no expression begins with {head!r}")
        return cls(head, tuple(cls.from_plain(part) for part in parts))

    def _inside(self) -> Iterator[Expression]:
        return (part for part in self.parts if isinstance(part, Expression))
