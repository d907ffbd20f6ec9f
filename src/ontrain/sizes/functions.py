"""Functions of sizes that are no polynomials, by the names under which expressions hold, print and read them."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

__all__ = ["FUNCTIONS", "INFIX"]


def _power(base: Any, exponent: Any) -> Any:
    return Fraction(base) ** exponent if isinstance(exponent, int) else float(base) ** float(exponent)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "/": lambda a, b: Fraction(a) / b,
    "**": _power,
    "max": max,
    "min": min,
    "floor": math.floor,
    "ceil": math.ceil,
    "trunc": math.trunc,
    "round": round,
    "float": lambda a: a,
    "sqrt": math.sqrt,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "and": lambda *conditions: all(conditions),
    "or": lambda *conditions: any(conditions),
    "not": lambda condition: not condition,
    "where": lambda condition, a, b: a if condition else b,
}
"""Name, as in Python, and value. `float` is the same number where graphs hold it as a float."""

INFIX = frozenset(("//", "%", "/", "**", "==", "!=", "<", "<=", ">", ">=", "and", "or"))
"""Functions that are written between their arguments."""
