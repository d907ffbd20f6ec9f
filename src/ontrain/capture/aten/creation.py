"""Tensors made from nothing: ranges, fills, triangles, windows."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from ontrain.capture.aten.registry import aten
from ontrain.capture.context import AtenBuilder, Dim, Scalar
from ontrain.operators import Value

__all__ = ["filled"]


def filled(op: AtenBuilder, value: Value | Scalar) -> Value:
    """Return a tensor of the current node's shape and dtype with one value everywhere."""
    value = op.cast(value, op.dtype)
    return op.expand(value, op.shape, [])


@aten("zeros", "zeros_like", "new_zeros", "empty", "empty_like", "new_empty", "empty_permuted",
      "new_empty_strided")  # fmt: skip
def zeros(op: AtenBuilder, *_: object, **__: object) -> Value:
    return filled(op, 0)


@aten("ones", "ones_like", "new_ones")
def ones(op: AtenBuilder, *_: object, **__: object) -> Value:
    return filled(op, 1)


@aten("full", "full_like", "new_full")
def full(op: AtenBuilder, *arguments: Any, **named: Any) -> Value:
    value = named["fill_value"] if "fill_value" in named else arguments[-1]
    return filled(op, value)


@aten("zero")
def zero(op: AtenBuilder, x: Value) -> Value:
    return op.constant_in(filled(op, 0), x)


@aten("fill")
def fill(op: AtenBuilder, x: Value, value: Value | Scalar) -> Value:
    return op.constant_in(filled(op, value), x)


@aten("scalar_tensor", "tensor")
def scalar_tensor(op: AtenBuilder, value: Scalar, **_: object) -> Value:
    return op.cast(value, op.dtype)


@aten("arange.default", "arange.start", "arange.start_step")
def arange(op: AtenBuilder, *bounds: Scalar, **_: object) -> Value:
    start, stop, step = (0, bounds[0], 1) if len(bounds) == 1 else (*bounds, 1)[:3]
    # torch counts in double precision whatever the dtype of the result.
    inner = op.dtype if not op.val.dtype.is_floating_point else ir.DataType.DOUBLE
    inner = inner if inner in (ir.DataType.INT64, ir.DataType.INT32, ir.DataType.DOUBLE) else ir.DataType.INT64
    counted = op.Range(*(op.cast(bound, inner) for bound in (start, stop, step)))
    return op.cast(op.typed(counted, op.shape), op.dtype)


@aten("linspace.default")
def linspace(op: AtenBuilder, start: float, end: float, steps: int, **_: object) -> Value:
    points = torch.linspace(start, end, steps, dtype=torch.float64, device="cpu")
    return op.cast(op.const(points.numpy()), op.dtype)


@aten("range")
def inclusive_range(op: AtenBuilder, start: float, end: float, step: float = 1, **_: object) -> Value:
    """Deprecated in torch: the end is among the numbers."""
    points = start + step * np.arange(np.floor((end - start) / step) + 1)
    return op.cast(op.const(points), op.dtype)


def _rows_and_columns(op: AtenBuilder) -> tuple[Any, Any]:
    rows, columns = op.shape[-2:]
    return op.Unsqueeze(op.counted(rows), [1]), op.Unsqueeze(op.counted(columns), [0])


@aten("eye")
def eye(op: AtenBuilder, *_: object, **__: object) -> Value:
    return op.cast(op.Equal(*_rows_and_columns(op)), op.dtype)


def _triangle(op: AtenBuilder, x: Value, diagonal: Dim, lower: bool) -> Value:
    def mask() -> Value:
        rows, columns = _rows_and_columns(op)
        edge = rows + op.cast(diagonal, ir.DataType.INT64)
        return op.LessOrEqual(columns, edge) if lower else op.GreaterOrEqual(columns, edge)

    triangle = op.memo(("triangle", lower, diagonal, *op.shape[-2:]), mask)
    return op.And(x, triangle) if x.dtype == ir.DataType.BOOL else op.Where(triangle, x, op.cast(0, x.dtype))


@aten("tril")
def tril(op: AtenBuilder, x: Value, diagonal: Dim = 0) -> Value:
    return _triangle(op, x, diagonal, lower=True)


@aten("triu")
def triu(op: AtenBuilder, x: Value, diagonal: Dim = 0) -> Value:
    return _triangle(op, x, diagonal, lower=False)


@aten("one_hot")
def one_hot(op: AtenBuilder, ids: Value, num_classes: int = -1) -> Value:
    if num_classes < 0:
        raise op.refuse(
            "one_hot without num_classes", "the number of classes would depend on the data", "pass num_classes"
        )
    values = op.const(np.array([0, 1], np.int64))
    hot = op.OneHot(ids, op.const(np.array(num_classes, np.int64)), values, axis=-1)
    # ONNX counts from the end, and has nothing hot outside. A row of nothing is looked up for what that refuses.
    nothing = op.const(np.zeros((num_classes, 1), np.int64))
    return hot + op.composite("Embedding", nothing, op.cast(ids, ir.DataType.INT64))


@aten("empty_strided")
def empty_strided(op: AtenBuilder, *_: object, **__: object) -> Value:
    return filled(op, 0)


@aten("tril_indices", "triu_indices")
def triangle_indices(op: AtenBuilder, rows: int, columns: int, offset: int = 0, **_: object) -> Value:
    find = torch.tril_indices if "tril" in str(op.node.target) else torch.triu_indices
    return op.cast(op.const(find(rows, columns, offset).numpy()), op.dtype)


@aten("hann_window", "hamming_window", "blackman_window", "bartlett_window", "kaiser_window")
def window(op: AtenBuilder, length: int, *rest: float, **named: Any) -> Value:
    """A constant: what torch itself computes."""
    make = getattr(torch, str(op.node.target).split(".")[1])
    weights = make(length, *rest, **{**named, "dtype": torch.float64})
    return op.cast(op.const(weights.numpy()), op.dtype)
