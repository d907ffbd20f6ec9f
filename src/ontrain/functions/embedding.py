"""Embedding with a padding row, and the gradient of a row gather."""

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
    id_dims, dy_dims = static_dims(ids), static_dims(dy)
    count, row = math.prod(id_dims), dy_dims[len(id_dims) :]
    flat_ids, flat_dy = op.Reshape(ids, [count, 1]), op.Reshape(dy, [count, math.prod(row)])
    if padding_idx >= 0:
        flat_dy = op.Where(op.Equal(flat_ids, padding_idx), 0.0, flat_dy)
    zeros = op.Expand(op.const(0.0, dy.dtype), [rows, math.prod(row)])
    # Not ScatterND, whose addition races in onnxruntime on a CPU.
    summed = op.ScatterElements(zeros, op.Expand(flat_ids, [count, math.prod(row)]), flat_dy, axis=0, reduction="add")
    return op.Reshape(summed, [rows, *row])
