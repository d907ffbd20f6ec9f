"""Tensors made from nothing: ranges, fills, triangles, random numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from ontrain.capture.aten.registry import aten
from ontrain.capture.context import AtenBuilder

__all__ = ["filled"]


def filled(op: AtenBuilder, value: Any) -> Any:
    """Return a tensor of the current node's shape and dtype with one value everywhere."""
    value = op.cast(value, op.dtype)
    return op.expand(value, op.shape, [])


@aten("zeros", "zeros_like", "new_zeros", "zero", "empty", "empty_like", "new_empty", "empty_permuted",
      "new_empty_strided")  # fmt: skip
def zeros(op: AtenBuilder, *_: Any, **__: Any) -> Any:
    return filled(op, 0)


@aten("ones", "ones_like", "new_ones")
def ones(op: AtenBuilder, *_: Any, **__: Any) -> Any:
    return filled(op, 1)


@aten("full", "full_like", "new_full", "fill")
def full(op: AtenBuilder, *arguments: Any, **named: Any) -> Any:
    value = named["fill_value"] if "fill_value" in named else arguments[-1]
    return filled(op, value)


@aten("scalar_tensor", "tensor")
def scalar_tensor(op: AtenBuilder, value: Any, **_: Any) -> Any:
    return op.cast(value, op.dtype)


@aten("arange.default", "arange.start", "arange.start_step")
def arange(op: AtenBuilder, *bounds: Any, **_: Any) -> Any:
    start, stop, step = (0, *bounds, 1) if len(bounds) == 1 else (*bounds, 1)[:3]
    # torch counts in double precision whatever the dtype of the result.
    inner = op.dtype if not op.val.dtype.is_floating_point else ir.DataType.DOUBLE
    inner = inner if inner in (ir.DataType.INT64, ir.DataType.INT32, ir.DataType.DOUBLE) else ir.DataType.INT64
    counted = op.Range(*(op.cast(bound, inner) for bound in (start, stop, step)))
    return op.cast(op.typed(counted, op.shape), op.dtype)


@aten("linspace.default")
def linspace(op: AtenBuilder, start: Any, end: Any, steps: int, **_: Any) -> Any:
    made = torch.linspace(start, end, steps, dtype=torch.float64)
    return op.cast(op.const(made.numpy()), op.dtype)


def _rows_and_columns(op: AtenBuilder) -> tuple[Any, Any]:
    rows, columns = op.shape[-2:]
    return op.Unsqueeze(op.counted(rows), [1]), op.Unsqueeze(op.counted(columns), [0])


@aten("eye")
def eye(op: AtenBuilder, *_: Any, **__: Any) -> Any:
    return op.cast(op.Equal(*_rows_and_columns(op)), op.dtype)


def _triangle(op: AtenBuilder, x: Any, diagonal: Any, lower: bool) -> Any:
    def mask() -> Any:
        rows, columns = _rows_and_columns(op)
        edge = rows + op.cast(diagonal, ir.DataType.INT64)
        return op.LessOrEqual(columns, edge) if lower else op.GreaterOrEqual(columns, edge)

    kept = op.memo(("triangle", lower, diagonal, *op.shape[-2:]), mask)
    return op.And(x, kept) if x.dtype == ir.DataType.BOOL else op.Where(kept, x, op.cast(0, x.dtype))


@aten("tril")
def tril(op: AtenBuilder, x: Any, diagonal: Any = 0) -> Any:
    return _triangle(op, x, diagonal, lower=True)


@aten("triu")
def triu(op: AtenBuilder, x: Any, diagonal: Any = 0) -> Any:
    return _triangle(op, x, diagonal, lower=False)


@aten("one_hot")
def one_hot(op: AtenBuilder, ids: Any, num_classes: int = -1) -> Any:
    if num_classes < 0:
        raise op.refuse(
            "one_hot without num_classes", "the number of classes would depend on the data", "pass num_classes"
        )
    values = op.const(np.array([0, 1], np.int64))
    return op.OneHot(ids, op.const(np.array(num_classes, np.int64)), values, axis=-1)


def _like(op: AtenBuilder) -> Any:
    return op.expand(op.const(np.float32(0)), op.shape, [])


@aten("rand", "rand_like", "uniform")
def rand(op: AtenBuilder, *arguments: Any, **_: Any) -> Any:
    is_uniform = "uniform" in str(op.node.target)
    low, high = (*arguments[1:], *(0.0, 1.0)[len(arguments) - 1 :]) if is_uniform else (0.0, 1.0)
    return op.cast(op.RandomUniformLike(_like(op), low=float(low), high=float(high)), op.dtype)


@aten("randn", "randn_like", "normal_functional", "normal")
def randn(op: AtenBuilder, *arguments: Any, **_: Any) -> Any:
    name = str(op.node.target)
    mean, std = (*arguments[1:], *(0.0, 1.0)[len(arguments) - 1 :]) if "normal" in name else (0.0, 1.0)
    return op.cast(op.RandomNormalLike(_like(op), mean=float(mean), scale=float(std)), op.dtype)


@aten("bernoulli.default", "bernoulli.p", "bernoulli.float")
def bernoulli(op: AtenBuilder, x: Any, p: float | None = None) -> Any:
    uniform = op.RandomUniformLike(_like(op))
    limit = op.cast(x if p is None else p, ir.DataType.FLOAT)
    return op.cast(op.Less(uniform, limit), op.dtype)


@aten("randint.default", "randint.low", "randint_like.default", "randint_like.low_dtype")
def randint(op: AtenBuilder, *arguments: Any, **_: Any) -> Any:
    numbers = [a for a in arguments if isinstance(a, int)]
    low, high = (0, numbers[0]) if len(numbers) == 1 else numbers[:2]
    return op.cast(op.Floor(op.RandomUniformLike(_like(op), low=float(low), high=float(high))), op.dtype)
