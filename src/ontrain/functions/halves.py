"""Numbers in half precision in a body: what follows from products of them goes on in single precision."""

from __future__ import annotations

import onnx_ir as ir

from ontrain.graph import Builder
from ontrain.operators import Value

__all__ = ["as_before", "unrounded"]

_HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def unrounded(op: Builder, x: Value) -> Value:
    """Return halves as single precision, and other numbers as they are."""
    return op.Cast(x, to=ir.DataType.FLOAT) if x.dtype in _HALVES else x


def as_before(op: Builder, x: Value, like: Value) -> Value:
    """Return numbers in the dtype of others."""
    return x if x.dtype == like.dtype else op.Cast(x, to=like.dtype)
