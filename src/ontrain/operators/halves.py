"""Numbers in half precision: what follows from products of them goes on in single precision."""

from __future__ import annotations

import onnx_ir as ir

from ontrain.operators.emit import Emitter, Value

__all__ = ["HALVES", "as_before", "unrounded"]

HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def unrounded(op: Emitter, x: Value) -> Value:
    """Return halves as single precision, and other numbers as they are."""
    return op.Cast(x, to=ir.DataType.FLOAT) if x.dtype in HALVES else x


def as_before(op: Emitter, x: Value, like: Value) -> Value:
    """Return numbers in the dtype of others."""
    return x if x.dtype == like.dtype else op.Cast(x, to=like.dtype)
