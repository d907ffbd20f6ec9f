"""Embedding with a padding row, the gradient of a row gather, and bags of rows."""

from __future__ import annotations

import math
from typing import Any

import onnx_ir as ir

from ontrain.functions.registry import composite
from ontrain.graph import Builder, static_dims
from ontrain.operators import Value

__all__: list[str] = []


def _embedding_types(inputs: list[Any], *, padding_idx: int = -1) -> list[tuple[ir.DataType, ir.Shape]]:
    weight, ids = inputs[0], inputs[1]
    return [(weight.dtype, ir.Shape([*ids.shape, *list(weight.shape)[1:]]))]


@composite("Embedding", infer=_embedding_types)
def embedding(op: Builder, weight: Value, ids: Value, *, padding_idx: int = -1) -> Value:
    """Rows of weight [V, D] by ids […]. Row `padding_idx` takes no gradient; −1 means none (torch.nn.Embedding)."""
    return op.Gather(weight, ids, axis=0)


def _grad_types(inputs: list[Any], *, rows: int = 0, padding_idx: int = -1) -> list[tuple[ir.DataType, ir.Shape]]:
    dy, ids = inputs[0], inputs[1]
    return [(dy.dtype, ir.Shape([rows, *list(dy.shape)[len(ids.shape) :]]))]


@composite("EmbeddingGrad", infer=_grad_types)
def embedding_grad(op: Builder, dy: Value, ids: Value, *, rows: int = 0, padding_idx: int = -1) -> Value:
    """Sum of the rows of dy per id, as a [rows, …] tensor; ids equal to `padding_idx` contribute nothing."""
    id_dims, row = static_dims(ids), list(dy.shape)[len(ids.shape) :]
    count, fixed = math.prod(id_dims), [size for size in row if isinstance(size, int)]
    width = math.prod(fixed) if len(fixed) == len(row) else -1
    flat_ids, flat_dy = op.Reshape(ids, [count, 1]), op.Reshape(dy, [count, width])
    if padding_idx >= 0:
        flat_dy = op.Where(op.Equal(flat_ids, padding_idx), 0.0, flat_dy)
    zeros = op.Expand(op.const(0.0, dy.dtype), _table(op, rows, width, flat_dy))
    # Not ScatterND, whose addition races in onnxruntime on a CPU.
    spread = op.Expand(flat_ids, _table(op, count, width, flat_dy))
    summed = op.ScatterElements(zeros, spread, flat_dy, axis=0, reduction="add")
    return summed if width < 0 and len(row) == 1 else op.Reshape(summed, [rows, *static_dims(dy)[len(id_dims) :]])


def _table(op: Builder, rows: int, width: int, like: Value) -> Any:
    """The shape of so many rows: as wide as those of `like`, where that varies."""
    return [rows, width] if width >= 0 else op.Concat([rows], op.Shape(like, start=1), axis=0)


def _bag_types(inputs: list[Any], **_: object) -> list[tuple[ir.DataType, ir.Shape]]:
    weight, _ids, starts = inputs[:3]
    return [(weight.dtype, ir.Shape([starts.shape[0], weight.shape[1]]))]


def _bag_grad_types(inputs: list[Any], *, rows: int = 0, **_: object) -> list[tuple[ir.DataType, ir.Shape]]:
    return [(inputs[0].dtype, ir.Shape([rows, inputs[0].shape[1]]))]


@composite("EmbeddingBag", infer=_bag_types)
def embedding_bag(
    op: Builder, weight: Value, ids: Value, starts: Value, shares: Value | None = None,
    *, mean: int = 0, padding_idx: int = -1,
) -> Value:  # fmt: skip
    """Sums or means over bags of rows of weight [V, D] by ids [n]; starts [bags] says where in ids each bag begins.

    Ids equal to `padding_idx` count nowhere; an empty bag is zero. A row is multiplied by its share, if there are some.
    A matrix [bags, n] says what belongs where. Source: torch.nn.functional.embedding_bag.
    """
    rows = op.composite("Embedding", weight, ids, padding_idx=padding_idx)
    return op.MatMul(_memberships(op, ids, starts, shares, weight.dtype, mean, padding_idx), rows)


@composite("EmbeddingBagGrad", infer=_bag_grad_types)
def embedding_bag_grad(
    op: Builder, dy: Value, ids: Value, starts: Value, shares: Value | None = None,
    *, rows: int = 0, mean: int = 0, padding_idx: int = -1,
) -> Value:  # fmt: skip
    """Adjoint of the weight [rows, D]: each row's share of its bag's dy [bags, D]."""
    memberships = _memberships(op, ids, starts, shares, dy.dtype, mean, padding_idx)
    drows = op.MatMul(op.Transpose(memberships, perm=[1, 0]), dy)
    return op.composite("EmbeddingGrad", drows, ids, rows=rows, padding_idx=padding_idx)


def _memberships(
    op: Builder, ids: Value, starts: Value, shares: Value | None, dtype: ir.DataType, mean: int, padding_idx: int
) -> Value:
    """With what factor each bag takes each id: [bags, n]."""
    places = op.Range(0, op.Squeeze(op.Shape(ids), [0]), 1)
    begun = op.LessOrEqual(op.Unsqueeze(starts, [0]), op.Unsqueeze(places, [1]))
    bag = op.ReduceSum(op.Cast(begun, to=ir.DataType.INT64), [1], keepdims=0) - 1
    bags = op.Unsqueeze(op.Range(0, op.Squeeze(op.Shape(starts), [0]), 1), [1])
    member = op.Equal(bags, op.Unsqueeze(bag, [0]))
    if padding_idx >= 0:
        member = op.And(member, op.Unsqueeze(op.Not(op.Equal(ids, padding_idx)), [0]))
    share = op.Cast(member, to=dtype)
    if shares is not None:
        return op.Where(member, op.Unsqueeze(shares, [0]), 0.0)
    return share / op.Max(op.ReduceSum(share, [1], keepdims=1), 1.0) if mean else share
