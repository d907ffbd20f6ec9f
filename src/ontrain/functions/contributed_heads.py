"""What onnxruntime's forms of attention share: heads, masks as summands of the scores, sizes, refusals.

Source: onnxruntime, docs/ContribOperators.md; where it is silent, what the CPU kernels do.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ontrain.functions.registry import NoBodyError
from ontrain.graph import Builder, static_dims
from ontrain.operators import Value

__all__ = ["HIDDEN", "ahead", "apart", "attended", "mask_bias", "quotient", "refuse", "summed", "together", "total"]

HIDDEN = -10000.0
"""What onnxruntime adds to the score of a key that a mask hides."""


def refuse(what: str) -> NoBodyError:
    """Return the error that a form of attention has no body."""
    return NoBodyError(what, "use CPUExecutionProvider")


def total(a: int | ir.SymbolicDim, b: int | ir.SymbolicDim) -> int | None:
    """Return the sum of two dimensions where both are numbers."""
    return a + b if isinstance(a, int) and isinstance(b, int) else None


def quotient(a: int | ir.SymbolicDim | None, b: int) -> int | None:
    """Return a dimension over a number where it is a number itself."""
    return a // b if isinstance(a, int) else None


def apart(op: Builder, x: Value, heads: int) -> Value:
    """Return [B, S, heads · width] as [B, heads, S, width]."""
    batch, length, _ = static_dims(x)
    return op.Transpose(op.Reshape(x, [batch, length, heads, -1]), perm=[0, 2, 1, 3])


def together(op: Builder, x: Value) -> Value:
    """Return [B, heads, S, width] as [B, S, heads · width]."""
    batch, heads, length, width = static_dims(x)
    return op.Reshape(op.Transpose(x, perm=[0, 2, 1, 3]), [batch, length, heads * width])


def attended(op: Builder, q: Value, k: Value, v: Value, bias: Value | None, scale: float) -> Value:
    """Return attention of heads [B, heads, S, width]; a scale of 0 is one over the root of the width."""
    result, _, _ = op.composite("Attention", q, k, v, bias, scale=scale or static_dims(q)[-1] ** -0.5, outputs=3)
    return result


def summed(a: Value | None, b: Value | None) -> Value | None:
    """Return the sum of what is added to the scores, where there is any."""
    return b if a is None else a if b is None else a + b


def ahead(op: Builder, past: int, queries: int, keys: int, dtype: ir.DataType) -> Value:
    """Return what hides keys from the queries before them; as in onnxruntime the last query sees all keys."""
    hidden = np.arange(keys) > np.arange(queries)[:, None] + past
    hidden[-1] = False
    return op.const(np.where(hidden, float(dtype.min), 0.0)[None, None], dtype)


def mask_bias(op: Builder, mask: Value, queries: int, keys: int, past: int, hidden: float, dtype: ir.DataType) -> Value:
    """Return what a mask adds to the scores [B, heads, queries, keys]; it says how many keys count, or which."""
    shape = static_dims(mask)
    places = op.const(np.arange(keys), ir.DataType.INT32)
    if len(shape) == 1:
        seen = op.Less(places, op.Unsqueeze(mask, [1]))
        seen = op.Unsqueeze(seen, [1, 2])
    elif len(shape) == 2:
        seen = op.Unsqueeze(op.Greater(mask, 0), [1, 2])
    elif len(shape) == 3:
        seen = op.Unsqueeze(op.Greater(mask, 0), [1])
    else:
        seen = op.Greater(op.Slice(mask, [past, 0], [past + queries, keys], [2, 3]), 0)
    return op.Where(seen, op.const(0.0, dtype), op.const(hidden, dtype))
