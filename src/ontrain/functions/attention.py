"""Scaled dot-product attention with dropout on the probabilities, and its gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.functions.registry import composite
from ontrain.graph import Builder, static_dims
from ontrain.operators import Value

__all__ = ["probabilities_are_read"]


def probabilities_are_read(node: ir.Node) -> bool:
    """Return whether anybody but the adjoints of query, key and value reads what an Attention gives beside its result.

    If nobody does, a kernel need not keep the probabilities.
    """
    if any(value.is_graph_output() for value in node.outputs[1:]):
        return True
    return any(not _is_of_gradients(use.node, use.idx) for value in node.outputs[1:] for use in value.uses())


def _is_of_gradients(node: ir.Node, index: int) -> bool:
    """Whether a use is an AttentionGrad's that gives no bias its adjoint, or hands the mask on to be applied again."""
    if node.op_type == "AttentionGrad":
        return index in (4, 5) and len(node.outputs) == 3
    return node.op_type == "Attention" and index == 4


def _types(inputs: list[Any], **_: object) -> list[tuple[ir.DataType, ir.Shape]]:
    q, k, v = inputs[:3]
    lead, length = list(q.shape)[:-1], list(k.shape)[-2]
    probs = ir.Shape([*lead, length])
    return [(q.dtype, ir.Shape([*lead, list(v.shape)[-1]])), (q.dtype, probs), (ir.DataType.BOOL, probs)]


@composite("Attention", infer=_types)
def attention(
    op: Builder, q: Value, k: Value, v: Value, bias: Value | None = None, mask: Value | None = None,
    bounds: Value | None = None,
    *, scale: float = 1.0, dropout: float = 0.0, longest: int = 0,
) -> tuple[Value, Value, Value]:  # fmt: skip
    """y = Dropout(Softmax(q kᵀ · scale + bias)) v for q [B, H, L, E], k [B, H, S, E], v [B, H, S, F].

    `bias` broadcasts to [B, H, L, S]. Also gives the probabilities before dropout and the dropout mask (all true
    when dropout is 0). A second computation is given the `mask` that the first one drew, bool [B, H, L, S].

    With `bounds`, int32 [N + 1], sequences lie packed one behind the other in a batch of one: of L = S rows sequence i
    has those from bounds[i] to bounds[i + 1], at most `longest`, and each row attends to the rows of its own sequence.
    The last bound is L, and there is no bias.
    Source: torch.nn.functional.scaled_dot_product_attention; torch.nn.attention.varlen.varlen_attn.
    """
    if bounds is not None:
        bias = _apart(op, bounds, static_dims(q)[2], q.dtype)
    scores = op.MatMul(q, op.Transpose(k, perm=[0, 1, 3, 2])) * scale
    if bias is not None:
        scores = scores + bias
    probs = op.Softmax(scores, axis=-1)
    if mask is not None:
        dropped = op.Where(mask, probs * (1 / (1 - dropout)), 0.0)
    else:
        dropped, mask = op.Dropout(probs, dropout, op.const(dropout > 0), outputs=2)
    return op.MatMul(dropped, v), probs, mask


def _apart(op: Builder, bounds: Value, rows: int, dtype: ir.DataType) -> Value:
    """What hides from each row the rows of other sequences, [1, 1, rows, rows]."""
    ends = op.Slice(bounds, np.array([1]), np.array([np.iinfo(np.int32).max]), np.array([0]))
    behind = op.GreaterOrEqual(op.const(np.arange(rows, dtype=np.int32).reshape(-1, 1)), ends)
    number = op.ReduceSum(op.Cast(behind, to=ir.DataType.INT32), np.array([1]), keepdims=0)
    same = op.Equal(op.Reshape(number, [1, 1, rows, 1]), op.Reshape(number, [1, 1, 1, rows]))
    return op.Where(same, op.const(0.0, dtype), op.const(-np.inf, dtype))


def _grad_types(inputs: list[Any], *, scale: float = 1.0, dropout: float = 0.0) -> list[tuple[ir.DataType, ir.Shape]]:
    return [(inputs[i].dtype, inputs[i].shape) for i in (1, 2, 3, 4)]


@composite("AttentionGrad", infer=_grad_types)
def attention_grad(
    op: Builder, dy: Value, q: Value, k: Value, v: Value, probs: Value, mask: Value,
    *, scale: float = 1.0, dropout: float = 0.0,
) -> tuple[Value, Value, Value, Value]:  # fmt: skip
    """Adjoints of (q, k, v, scores) from the saved probabilities and dropout mask; scores' adjoint is the bias's."""
    transposed = [0, 1, 3, 2]
    keep = 1 / (1 - dropout)
    dropped = op.Where(mask, probs * keep, 0.0) if dropout else probs
    dv = op.MatMul(op.Transpose(dropped, perm=transposed), dy)
    dp = op.MatMul(dy, op.Transpose(v, perm=transposed))
    if dropout:
        dp = op.Where(mask, dp * keep, 0.0)
    ds = op.composite("SoftmaxGrad", dp, probs, axis=-1)
    dq = op.MatMul(ds, k) * scale
    dk = op.MatMul(op.Transpose(ds, perm=transposed), q) * scale
    return dq, dk, dv, ds
