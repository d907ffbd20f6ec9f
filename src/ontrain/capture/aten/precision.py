"""Translations in single precision where numbers are halves: a result is rounded once, as torch's kernels do it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

import onnx_ir as ir

from ontrain.capture.context import AtenBuilder, dtype_of
from ontrain.operators import HALVES

__all__ = ["Translation", "in_single"]

Translation = TypeVar("Translation", bound=Callable[..., Any])


def in_single(translation: Translation) -> Translation:
    """Have a translation see halves among its operands as float32, and round what it returns to torch's dtypes.

    An operator of torch rounds its result; several operators in its place would round between each other. Of other
    operands nothing changes. The translation gives no buffer of the module its next value.
    """

    @functools.wraps(translation)
    def translate(op: AtenBuilder, *operands: Any, **named: Any) -> Any:
        if not any(value.dtype in HALVES for value in _values((operands, named))):
            return translation(op, *operands, **named)
        with op.in_single():
            results = translation(op, *(_widened(op, operand) for operand in operands),
                                  **{name: _widened(op, operand) for name, operand in named.items()})  # fmt: skip
        if isinstance(results, ir.Value):
            return op.cast(results, op.dtype)
        vals = op.node.meta["val"]
        return type(results)(
            op.cast(result, dtype_of(val.dtype)) if isinstance(result, ir.Value) else result
            for result, val in zip(results, vals, strict=True)
        )

    return cast(Translation, translate)


def _values(operand: Any) -> Iterator[ir.Value]:
    if isinstance(operand, ir.Value):
        yield operand
    elif isinstance(operand, list | tuple | dict):
        for part in operand.values() if isinstance(operand, dict) else operand:
            yield from _values(part)


def _widened(op: AtenBuilder, operand: Any) -> Any:
    if isinstance(operand, list | tuple):
        return type(operand)(_widened(op, part) for part in operand)
    is_half = isinstance(operand, ir.Value) and operand.dtype in HALVES
    return op.cast(operand, ir.DataType.FLOAT) if is_half else operand
