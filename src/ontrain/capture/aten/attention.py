"""Scaled dot-product attention as the composite `Attention`, with masks made once for all layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.capture.aten.registry import aten
from ontrain.capture.context import AtenBuilder, Dim, repeated_constant
from ontrain.operators import Value

__all__: list[str] = []


def _lowest(dtype: ir.DataType) -> float:
    """A finite stand-in for minus infinity: exp of it is 0, and differences of two are no NaN."""
    return -3e4 if dtype == ir.DataType.FLOAT16 else -1e30


def _bias(op: AtenBuilder, mask: Value, dtype: ir.DataType) -> tuple[Any, Any]:
    """Return a finite additive bias [.., L, S] for a mask, and 1 or 0 for each row [.., L, 1] that sees a key or none.

    The second is None where every row is known to see one.
    """
    low = op.cast(_lowest(dtype), dtype)
    if mask.dtype == ir.DataType.BOOL:
        bias = op.Where(mask, op.cast(0, dtype), low)
        # Bytes: four times as large a mask is still known once for all.
        seen = op.Cast(op.ReduceMax(op.Cast(mask, to=ir.DataType.UINT8), [-1], keepdims=1), to=dtype)
    elif mask in op.trained:
        # A learned bias is no mask, and a clamp would cost its gradient a pass.
        return op.cast(mask, dtype), None
    else:
        mask = op.cast(mask, dtype)
        bias = op.Max(mask, low)
        best = op.ReduceMax(mask, [-1], keepdims=1)
        seen = op.Cast(op.Greater(best, op.cast(-np.inf, dtype)), to=dtype)
    always = seen.const_value is not None and bool(np.all(seen.const_value.numpy() == 1))
    return bias, None if always else seen


def _hides_nothing(mask: ir.Value) -> bool:
    """Whether a mask is true everywhere, as some models make one where nothing is to be hidden."""
    constant = repeated_constant(mask)
    return constant is not None and mask.dtype == ir.DataType.BOOL and bool(np.all(constant))


def _causal(op: AtenBuilder, length: Dim, keys: Dim, dtype: ir.DataType) -> Value:
    """The bias [L, S] under which row i sees keys 0…i."""
    rows = op.Unsqueeze(op.counted(length), [1])
    columns = op.Unsqueeze(op.counted(keys), [0])
    return op.Where(op.Less(rows, columns), op.cast(_lowest(dtype), dtype), op.cast(0, dtype))


@aten("scaled_dot_product_attention")
def scaled_dot_product_attention(
    op: AtenBuilder, q: Value, k: Value, v: Value, attn_mask: Value | None = None, dropout_p: float = 0.0,
    is_causal: bool = False,
    *, scale: float | None = None, enable_gqa: bool = False,
) -> Value:  # fmt: skip
    shapes = [op.input_shape(i) for i in range(3)]
    rank = len(shapes[0])
    if rank > 4 and enable_gqa:
        raise op.refuse(
            f"attention with groups of heads on tensors of rank {rank}",
            "the composite takes [batch, heads, length, size]",
            "fold the leading dimensions into the batch before the call",
        )  # fmt: skip
    if scale is None:
        scale = _scale(op, shapes[0][-1])
    if rank == 4 and enable_gqa:
        k, v = (_repeat_heads(op, x, shapes[0], shapes[i]) for i, x in ((1, k), (2, v)))
        shapes = [shapes[0], *([*shapes[0][:2], *shape[2:]] for shape in shapes[1:])]
    q, k, v, attn_mask = _in_four_dims(op, q, k, v, attn_mask, shapes)
    bias = seen = None
    if attn_mask is not None and not _hides_nothing(attn_mask):
        bias, seen = op.memo(("bias", attn_mask, q.dtype), lambda: _bias(op, attn_mask, q.dtype))
    if is_causal:
        length, keys = shapes[0][-2], shapes[1][-2]
        causal = op.memo(("causal", length, keys, q.dtype), lambda: _causal(op, length, keys, q.dtype))
        bias = causal if bias is None else bias + causal
    y, _, _ = op.composite("Attention", q, k, v, bias, scale=float(scale), dropout=float(dropout_p), outputs=3)
    if seen is not None:
        # torch gives zero where a row sees no key.
        y = y * seen
    if rank > 4:
        lead, after = _lead(shapes), [shapes[0][-2], shapes[2][-1]]
        return op.reshape(y, [*lead, *after], [math.prod(lead[:-1]), lead[-1], *after])
    return op.Squeeze(y, _added(rank)) if rank < 4 else y


def _scale(op: AtenBuilder, width: Dim) -> float:
    if not isinstance(width, int):
        raise op.refuse("attention over a head size that varies", "its scale is a constant", "pass scale=")
    return 1 / math.sqrt(width)


def _added(rank: int) -> list[int]:
    """Which of [batch, heads, length, size] a tensor of a lower rank lacks."""
    return list(range(4 - rank)) if rank == 2 else [1]


def _in_four_dims(
    op: AtenBuilder, q: Value, k: Value, v: Value, mask: Value | None, shapes: Sequence[list[Dim]]
) -> tuple[Value, Value, Value, Value | None]:
    """Queries, keys and values as [batch, heads, length, size], and a mask that fits their scores."""
    rank = len(shapes[0])
    if rank == 4:
        q, k, v = _with_equal_leads(op, (q, k, v), shapes)
    elif rank < 4:
        q, k, v = (op.Unsqueeze(x, _added(rank)) for x in (q, k, v))
        if mask is not None and rank == 3 and len(mask.shape) == 3:
            mask = op.memo(("heads", mask), lambda: op.Unsqueeze(mask, [1]))
    else:
        lead = _lead(shapes)
        q, k, v = (_folded(op, x, lead, shape) for x, shape in zip((q, k, v), shapes, strict=True))
        if mask is not None and len(mask.shape) > 2:
            mask = _folded(op, mask, lead, op.input_shape(3))
    return q, k, v, mask


def _with_equal_leads(op: AtenBuilder, tensors: Sequence[Any], shapes: Sequence[list[Dim]]) -> list[Any]:
    """Broadcast batch and heads against each other, as for keys that all heads share."""
    lead = _lead(shapes)
    return [op.expand(x, [*lead, *s[2:]], s) for x, s in zip(tensors, shapes, strict=True)]


def _lead(shapes: Sequence[list[Dim]]) -> list[Dim]:
    """All dimensions before length and size, broadcast."""
    return [next((size for size in sizes if size != 1), 1) for sizes in zip(*(s[:-2] for s in shapes), strict=True)]


def _folded(op: AtenBuilder, x: Value, lead: list[Dim], shape: list[Dim]) -> Value:
    """Broadcast to all leading dimensions, of which those before the last become one."""
    whole = [*lead, *shape[-2:]]
    return op.reshape(op.expand(x, whole, shape), [math.prod(lead[:-1]), *whole[-3:]], whole)


def _repeat_heads(op: AtenBuilder, x: Value, q_shape: list[Dim], shape: list[Dim]) -> Value:
    heads, groups = q_shape[1], shape[1]
    if heads == groups:
        return x
    assert isinstance(heads, int) and isinstance(groups, int)
    copies = op.Expand(op.Unsqueeze(x, [2]), [1, 1, heads // groups, 1, 1])
    return op.reshape(copies, [shape[0], heads, *shape[2:]], [*shape[:2], heads // groups, *shape[2:]])
