"""Sizes as torch has them while it traces, sympy's expressions, as sizes of ours. Nothing else knows sympy."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import sympy

from ontrain.errors import CaptureError
from ontrain.internals import of, private
from ontrain.sizes import Size

__all__ = ["certain", "names_of", "size_of", "symbol_of", "valued"]

_NAMES = {
    "Mod": "%", "PythonMod": "%", "FloorDiv": "//", "CleanDiv": "//", "IntTrueDiv": "/", "FloatTrueDiv": "/",
    "Pow": "**", "PowByNatural": "**", "FloatPow": "**", "floor": "floor", "ceiling": "ceil", "FloorToInt": "floor",
    "CeilToInt": "ceil", "TruncToInt": "trunc", "TruncToFloat": "trunc", "RoundToInt": "round", "ToFloat": "float",
    "OpaqueUnaryFn_sqrt": "sqrt", "Max": "max", "Min": "min", "Equality": "==",
    "Unequality": "!=", "StrictLessThan": "<", "LessThan": "<=", "StrictGreaterThan": ">", "GreaterThan": ">=",
    "And": "and", "Or": "or", "Not": "not", "Where": "where", "ITE": "where",
}  # fmt: skip


def size_of(value: Any, names: Mapping[str, str] | None = None) -> Size:
    """Return sympy's expression, or a number, as a size.

    Args:
        value: a sum, a product, a quotient or a condition.
        names: other names for symbols.

    Raises:
        CaptureError: it uses a function that has no translation.
    """
    expr = sympy.sympify(value)
    if expr is sympy.true or expr is sympy.false:
        return Size.number(int(bool(expr)))
    if expr.is_Symbol:
        return Size.symbol((names or {}).get(expr.name, expr.name))
    if expr.is_Rational:
        return Size.number(Fraction(int(expr.p), int(expr.q)))
    if expr.is_Float:
        return Size.number(Fraction(float(expr)))
    if expr.is_infinite:
        return Size.call("inf") if expr.is_extended_positive else -Size.call("inf")
    if expr.is_Piecewise:
        return _of_branches([pair.args for pair in expr.args], names)
    return _of_call(expr, [size_of(argument, names) for argument in expr.args])


def _of_branches(pairs: Sequence[tuple[Any, Any]], names: Mapping[str, str] | None) -> Size:
    """The value of the first condition that holds; the last one always does."""
    *branches, (last, _) = pairs
    chosen = size_of(last, names)
    for value, condition in reversed(branches):
        chosen = Size.call("where", size_of(condition, names), size_of(value, names), chosen)
    return chosen


def _of_call(expr: Any, arguments: Sequence[Size]) -> Size:
    head = type(expr).__name__
    match head:
        case "Identity":
            return arguments[0]
        case "Add":
            return functools.reduce(operator.add, arguments)
        case "Mul":
            return functools.reduce(operator.mul, arguments)
        case "Abs":
            return Size.call("max", arguments[0], -arguments[0])
        case "CeilDiv":
            return -(-arguments[0] // arguments[1])
        case "ModularIndexing":
            return arguments[0] // arguments[1] % arguments[2]
    exponent = arguments[1].as_number if head in ("Pow", "PowByNatural") else None
    if isinstance(exponent, int) and exponent > 0:
        return functools.reduce(operator.mul, [arguments[0]] * exponent)
    if head not in _NAMES:
        raise CaptureError(f"the size {expr} uses {head}, which has no translation")
    return Size.call(_NAMES[head], *arguments)


def names_of(expr: Any) -> frozenset[str]:
    """Return the names of the symbols in an expression or a number."""
    return frozenset(symbol.name for symbol in sympy.sympify(expr).free_symbols)


def symbol_of(number: Any) -> str | None:
    """Return the name of the symbol that a number of torch's was made with; that of a truth value is one or zero."""
    expr = of("torch.fx.experimental.sym_node.SymNode._expr", number.node)
    if isinstance(expr, sympy.Eq) and expr.rhs == 1:
        expr = expr.lhs
    return str(expr.name) if isinstance(expr, sympy.Symbol) else None


def valued(expr: Any, numbers: Mapping[str, int | float]) -> tuple[Any, Size] | None:
    """Return sympy's expression as a number or truth value, and the condition that it is this one.

    Args:
        expr: sympy's.
        numbers: of its symbols, by name; None is returned if some are missing.
    """
    known = {symbol: sympy.sympify(numbers[symbol.name]) for symbol in expr.free_symbols if symbol.name in numbers}
    value = expr.xreplace(known)
    if value is sympy.true:
        return value, size_of(expr)
    if value is sympy.false:
        return value, Size.call("not", size_of(expr))
    if not value.is_number:
        return None
    return value, Size.call("==", size_of(expr), size_of(value))


def certain(expr: Any, bounds: Mapping[str, tuple[float, float]]) -> Any:
    """Return sympy's expression as the number or truth value that it is within bounds, None if there are several.

    Args:
        expr: sympy's.
        bounds: of its symbols, by name; None is returned if some are missing.
    """
    if not expr.free_symbols or any(symbol.name not in bounds for symbol in expr.free_symbols):
        return None
    between = private("torch.utils._sympy.value_ranges.ValueRanges")
    ranges = {
        symbol: between(*(int(end) if symbol.is_integer else end for end in bounds[symbol.name]))
        for symbol in expr.free_symbols
    }
    within = private("torch.utils._sympy.value_ranges.bound_sympy")(expr, ranges)
    return within.lower if within.lower == within.upper else None
