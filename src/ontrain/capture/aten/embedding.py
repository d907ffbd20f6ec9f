"""Rows of a table, and sums, means and maxima over bags of them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ontrain.capture.aliases import mutates
from ontrain.capture.aten.reduction import shortened
from ontrain.capture.aten.registry import aten
from ontrain.capture.context import AtenBuilder
from ontrain.operators import Value

__all__: list[str] = []


@aten("embedding")
def embedding(
    op: AtenBuilder, weight: Value, ids: Value, padding_idx: int = -1, scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Value:  # fmt: skip
    # torch.nn.functional makes a negative padding_idx positive before it calls the operator; −1 means none.
    y = op.composite("Embedding", weight, ids, padding_idx=padding_idx)
    if not scale_grad_by_freq:
        return y
    fixed, frequencies = op.composite("Detach", y), _frequencies(op, weight, ids)
    return fixed + (y - fixed) * op.Unsqueeze(op.Reciprocal(op.Gather(frequencies, ids)), [-1])


def _frequencies(op: AtenBuilder, weight: Value, ids: Value) -> Value:
    """How often each row of a table is looked up, [rows], in the table's dtype."""
    ones = op.Expand(op.cast(1, weight.dtype), op.sizes(op.input_shape(1)))
    zeros = op.Expand(op.cast(0, weight.dtype), op.sizes(op.input_shape(0)[:1]))
    return op.ScatterND(zeros, op.Unsqueeze(op.cast(ids, ir.DataType.INT64), [-1]), ones, reduction="add")


@aten("embedding_renorm")
def embedding_renorm(op: AtenBuilder, weight: Value, ids: Value, max_norm: float, norm_type: float) -> Value:
    """The table with those rows that are looked up, and longer than the norm, shortened to it.

    In a program without writes in place, the result stands for the table itself, so it hands its gradient to the table.
    """
    read = op.Greater(op.Unsqueeze(_frequencies(op, weight, ids), [1]), op.cast(0, weight.dtype))
    new = op.Where(read, shortened(op, weight, norm_type, [1], max_norm), weight)
    if mutates(op.node):
        return new
    return op.composite("Revalued", weight, op.composite("Detach", new))


@aten("embedding_bag", "_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(
    op: AtenBuilder, weight: Value, ids: Value, offsets: Value, scale_grad_by_freq: bool = False, mode: int = 0,
    sparse: bool = False, per_sample_weights: Value | None = None, include_last_offset: bool = False,
    padding_idx: int | None = -1,
) -> tuple[Value, None, None, None]:  # fmt: skip
    """Sums and means over bags of rows are an operator; for maxima a matrix [bags, ids] says what belongs where."""
    if scale_grad_by_freq:
        raise op.refuse("an embedding bag scales its gradient by frequency", "torch's kernel takes other rows' counts",
                        "set scale_grad_by_freq=False")  # fmt: skip
    padding = -1 if padding_idx is None else padding_idx
    rows = op.input_shape(0)[0]
    if padding < 0 and padding_idx is not None and "padding_idx" in str(op.node.target) and isinstance(rows, int):
        padding += rows  # of this overload alone a negative number counts from the end
    starts = op.cast(offsets, ir.DataType.INT64)
    if include_last_offset:
        starts = op.Slice(starts, [0], [-1], [0])
    if mode < 2:
        y = op.composite(
            "EmbeddingBag", weight, op.cast(ids, ir.DataType.INT64), starts, per_sample_weights, mean=mode,
            padding_idx=padding,
        )  # fmt: skip
        return op.typed(y, op.shape), None, None, None
    zero = op.cast(0, weight.dtype)
    picked = op.composite("Embedding", weight, ids, padding_idx=padding)
    place = op.counted(op.input_shape(1)[0])
    begun = op.Cast(op.LessOrEqual(op.Unsqueeze(starts, [0]), op.Unsqueeze(place, [1])), to=ir.DataType.INT64)
    bag = op.ReduceSum(begun, [1], keepdims=0) - op.cast(1, ir.DataType.INT64)
    bags = op.Unsqueeze(op.counted(op.shape[0]), [1])
    member = op.Equal(bags, op.Unsqueeze(bag, [0]))
    if padding >= 0:
        member = op.And(member, op.Unsqueeze(op.Not(op.Equal(ids, op.cast(padding, ids.dtype))), [0]))
    counts = op.ReduceSum(op.Cast(member, to=weight.dtype), [1], keepdims=1)
    spread = op.Where(op.Unsqueeze(member, [2]), op.Unsqueeze(picked, [0]), op.cast(-np.inf, weight.dtype))
    at = op.ArgMax(spread, axis=1, keepdims=1)
    y = op.Squeeze(op.GatherElements(spread, at, axis=1), [1])
    return op.Where(op.Greater(counts, zero), y, zero), None, None, None
