"""Functions of sizes that are no polynomials, by the names under which expressions hold, print and read them."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

__all__ = ["FUNCTIONS", "INFIX"]


def _quotient(a: Any, b: Any) -> float:
    """Python's, rounded once: exact fractions beside it are floats before they divide."""
    quotient: float = a / b if isinstance(a, int) and isinstance(b, int) else float(a) / float(b)
    return quotient


def _power(base: Any, exponent: Any) -> Any:
    return Fraction(base) ** exponent if isinstance(exponent, int) else float(base) ** float(exponent)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "/": _quotient,
    "**": _power,
    "max": max,
    "min": min,
    "floor": math.floor,
    "ceil": math.ceil,
    "trunc": math.trunc,
    "round": round,
    "float": float,
    "sqrt": math.sqrt,
    "inf": lambda: math.inf,
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
"""Name, as in Python, and value: quotients, roots and `float` are floats, and so is what holds one."""

INFIX = frozenset(("//", "%", "/", "**", "==", "!=", "<", "<=", ">", ">=", "and", "or"))
"""Functions that are written between their arguments."""
