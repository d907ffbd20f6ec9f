"""Products of groups of rows with a matrix each.

Where the number of rows is known, each matrix of a body sees all rows, others' as zeros: all sizes are known, too.
Where it is not, the rows are split into the groups.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ontrain.functions.registry import composite
from ontrain.graph import Builder
from ontrain.operators import Value, dims, each, static_dims

__all__: list[str] = []


def _products(inputs: Sequence[ir.Value], **_: object) -> list[tuple[ir.DataType, ir.Shape]]:
    x, w = inputs[:2]
    assert x.dtype is not None and x.shape is not None and w.shape is not None
    return [(x.dtype, ir.Shape([list(x.shape)[0], list(w.shape)[2]]))]


def _sums(inputs: Sequence[ir.Value], **_: object) -> list[tuple[ir.DataType, ir.Shape]]:
    x, y, ends = inputs
    assert x.dtype is not None and x.shape is not None and y.shape is not None and ends.shape is not None
    return [(x.dtype, ir.Shape([list(ends.shape)[0], list(x.shape)[1], list(y.shape)[1]]))]


@composite("GroupedMatMul", infer=_products)
def grouped_matmul(op: Builder, x: Value, w: Value, ends: Value) -> Value:
    """y[t] = x[t] w[g] for the rows t of group g, [T, N]: x [T, K] sorted by group, w [G, K, N].

    Group g ends before row ends[g], int64 [G], and begins where the last one ends. Rows behind all groups give zeros.
    Source: torch.nn.functional.grouped_mm.
    """
    if isinstance(dims(x)[0], int):
        return op.ReduceSum(op.MatMul(_apart(op, x, ends), w), [0], keepdims=0)
    *groups, rest = _split(op, x, ends)
    matrices = _matrices(op, w, len(groups))
    width = op.Concat(op.Shape(rest, end=1), op.Shape(w, start=2), axis=0)
    zeros = op.Expand(op.const(0.0, x.dtype), width)
    return op.Concat(*map(op.MatMul, groups, matrices), zeros, axis=0)


@composite("GroupedOuter", infer=_sums)
def grouped_outer(op: Builder, x: Value, y: Value, ends: Value) -> Value:
    """Σ_t x[t] y[t]ᵀ over the rows t of each group, [G, K, N]: x [T, K], y [T, N], ends as in GroupedMatMul."""
    if isinstance(dims(x)[0], int):
        return op.MatMul(op.Transpose(_apart(op, x, ends), perm=[0, 2, 1]), op.Unsqueeze(y, [0]))
    pairs = zip(_split(op, x, ends)[:-1], _split(op, y, ends)[:-1], strict=True)
    return op.Concat(*(op.Unsqueeze(op.MatMul(op.Transpose(a), b), [0]) for a, b in pairs), axis=0)


def _split(op: Builder, x: Value, ends: Value) -> Sequence[Value]:
    """The rows of each group, then those behind all groups."""
    (groups,) = static_dims(ends)
    count = op.Shape(x, end=1)
    ends = op.Max(op.Min(ends, count), op.const(np.zeros(1, np.int64)))
    starts = op.Concat(op.const(np.zeros(1, np.int64)), ends, axis=0)
    return each(op.Split(x, op.Concat(ends, count, axis=0) - starts, axis=0, outputs=groups + 1))


def _matrices(op: Builder, w: Value, groups: int) -> Sequence[Value]:
    return [op.Squeeze(op.Slice(w, [group], [group + 1], [0]), [0]) for group in range(groups)]


def _apart(op: Builder, x: Value, ends: Value) -> Value:
    """The rows of each group in their places among zeros, [G, T, K]."""
    (count, _), (groups,) = static_dims(x), static_dims(ends)
    rows = op.const(np.arange(count)[None])
    starts = op.Concat(op.const(np.zeros(1, np.int64)), op.Slice(ends, [0], [groups - 1], [0]), axis=0)
    after, before = op.GreaterOrEqual(rows, op.Unsqueeze(starts, [1])), op.Less(rows, op.Unsqueeze(ends, [1]))
    return op.Unsqueeze(x, [0]) * op.Unsqueeze(op.Cast(op.And(after, before), to=x.dtype), [2])
