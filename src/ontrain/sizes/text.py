"""Sizes as text: what `str` prints is read back, and so are the names of dimensions that files state."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache

from ontrain.sizes.expression import Size
from ontrain.sizes.functions import FUNCTIONS

__all__ = ["evaluated", "parse"]

_TERMS = 256
"""Up to how many terms a product is multiplied out: a name in a file may be written to have billions."""
_OPERATORS: dict[type[ast.AST], str] = {
    ast.FloorDiv: "//", ast.Mod: "%", ast.Div: "/", ast.Pow: "**", ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<",
    ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.And: "and", ast.Or: "or",
}  # fmt: skip


@lru_cache(maxsize=4096)
def parse(text: str) -> Size:
    """Return the size that a text states in Python's words.

    Raises:
        ValueError: it states none.
    """
    try:
        return _size(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError, TypeError, ValueError, ArithmeticError) as error:
        raise ValueError(f"{text!r} is no size") from error


def evaluated(text: str, sizes: Mapping[str, int]) -> int | None:
    """Return what a dimension's name such as "64*batch + 1" stands for at some sizes.

    None if it is no sum or product of whole numbers and of these sizes; exporters write such names, too.
    """
    if text in sizes:
        return sizes[text]
    try:
        size = parse(text)
    except ValueError:
        return None
    return int(size.value(sizes)) if size.is_dimension and size.symbols() <= sizes.keys() else None


def _size(tree: ast.expr) -> Size:
    match tree:
        case ast.Constant(value=int(number)):
            return Size.number(number)
        case ast.Name(id=name):
            return Size.symbol(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_size(operand)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return Size.call("not", _size(operand))
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _size(left) + _size(right)
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return _size(left) - _size(right)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            first, second = _size(left), _size(right)
            if len(first.terms) * len(second.terms) <= _TERMS:
                return first * second
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            top, bottom = _size(left), _size(right)
            if top.as_number is not None and bottom.as_number:
                return top * Fraction(1, bottom.as_number)  # an exact coefficient, as it is printed
            return Size.call("/", top, bottom)
        case ast.BinOp(left=left, op=ast.FloorDiv() | ast.Mod() as op, right=right):
            return Size.call(_OPERATORS[type(op)], _size(left), _size(right))
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            base, exponent = _size(left), _size(right)
            if base.as_number is None:
                return Size.call("**", base, exponent)
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _OPERATORS:
            return Size.call(_OPERATORS[type(op)], _size(left), _size(right))
        case ast.BoolOp(op=op, values=values):
            return Size.call(_OPERATORS[type(op)], *map(_size, values))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in FUNCTIONS:
            return Size.call(name, *map(_size, arguments))
    raise ValueError(type(tree).__name__)
