"""Writing at places that a tensor of indices names: scatters, and what index_add and its like make of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from ontrain.capture.aten.places import from_start
from ontrain.capture.aten.registry import aten
from ontrain.capture.aten.view import diagonal_places, sliced
from ontrain.capture.context import AtenBuilder, Dim, Scalar
from ontrain.operators import Value

__all__: list[str] = []

_INT64 = ir.DataType.INT64
_REDUCTIONS = {None: None, "add": "add", "sum": "add", "mean": "add", "multiply": "mul", "prod": "mul", "amax": "max",
               "amin": "min"}  # fmt: skip
# What a reduction starts from where the tensor's own value does not take part.
_IDENTITY = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "amax": -np.inf, "amin": np.inf}


def _first(op: AtenBuilder, x: Value, shape: list[Dim]) -> tuple[Any, list[Dim]]:
    """x with at least one axis."""
    return (x, shape) if shape else (op.Reshape(x, [1]), [1])


def _reduced(
    op: AtenBuilder, x: Value, index: Value, source: Value, dim: int, reduce: str | None, include_self: bool
) -> Value:
    """Scatter into x under a reduction; `index` and `source` have one shape, each index names a place along `dim`."""

    def scattered(into: Value, values: Value | None, reduction: str | None) -> Value:
        return op.ScatterElements(into, index, values, axis=dim, reduction=reduction)

    zero, one = op.cast(0, x.dtype), op.cast(1, x.dtype)
    ones = source * zero + one if reduce == "mean" or not include_self else None
    if not include_self:
        assert reduce is not None
        touched = scattered(x * zero, op.composite("Detach", ones), None)
        lost = _IDENTITY[reduce]
        if np.isinf(lost) and not x.dtype.is_floating_point():
            raise op.refuse("a scattered extreme of integers without the tensor itself", "it has no translation",
                            "cast to a float dtype first")  # fmt: skip
        x = op.Where(op.Greater(touched, zero), op.cast(lost, x.dtype), x)
    y = scattered(x, source, _REDUCTIONS[reduce])
    if reduce == "mean":
        counts = scattered(op.Mul(y, zero) + (one if include_self else zero), ones, "add")
        counts = op.composite("Detach", op.Max(counts, one)) if x.dtype.is_floating_point() else op.Max(counts, one)
        # torch floors the mean of integers.
        return y / counts if x.dtype.is_floating_point() else (y - op.Mod(y, counts)) / counts
    return y


@aten("scatter.src", "scatter.value", "scatter_add", "scatter.reduce", "scatter.value_reduce", "scatter_reduce.two")
def scatter(
    op: AtenBuilder, x: Value, dim: int, index: Value, source: Value | Scalar, reduce: str | None = None, *_: object,
    include_self: bool = True,
) -> Value:  # fmt: skip
    if "scatter_add" in str(op.node.target):
        reduce = "add"
    if reduce not in _REDUCTIONS:
        raise op.refuse(f"scatter with reduce={reduce!r}", "ONNX has no such reduction", "use sum, prod, amax or amin")
    x, _shape = _first(op, x, op.input_shape(0))
    index, shape = _first(op, from_start(op, index), op.input_shape(2))
    if any(size == 0 for size in shape):
        return op.reshape(x, op.shape, [1]) if not op.shape else x
    if isinstance(source, ir.Value) and isinstance(op.argument(3, "src"), torch.Tensor):
        values, before = _first(op, source, op.shape_of_val(op.argument(3, "src")))
        if before:
            for axis, (have, want) in enumerate(zip(before, shape, strict=True)):
                values = values if have == want else sliced(op, values, axis, 0, want)
        source = op.cast(values, op.dtype)
    else:
        source = op.expand(op.cast(source, op.dtype), shape, [])
    y = _reduced(op, x, index, source, dim, reduce, include_self)
    return y if op.shape else op.Reshape(y, np.zeros(0, np.int64))


def _spread(op: AtenBuilder, dim: int, index: Value, position: int) -> tuple[int, Any, list[Dim]]:
    """The axis, the index [n] along it, and the shape of the source, whose every row the index is repeated for."""
    shape = op.input_shape(position) or [1]
    rank = max(len(op.input_shape(0)), 1)
    dim %= rank
    column = op.Reshape(index, [-1 if axis == dim else 1 for axis in range(rank)])
    shape = [*shape, *[1] * (rank - len(shape))]
    return dim, op.expand(column, shape, [shape[dim] if axis == dim else 1 for axis in range(rank)]), shape


def _indexed(
    op: AtenBuilder, x: Value, dim: int, index: Value, source: Value, reduce: str | None, include_self: bool
) -> Value:
    shape = op.input_shape(0)
    x, _ = _first(op, x, shape)
    dim, spread, wanted = _spread(op, dim, from_start(op, index), 3)
    source = op.Reshape(source, [1] * len(wanted)) if source.shape is not None and not len(source.shape) else source
    y = _reduced(op, x, spread, source, dim, reduce, include_self)
    return y if shape else op.Reshape(y, np.zeros(0, np.int64))


@aten("index_add")
def index_add(op: AtenBuilder, x: Value, dim: int, index: Value, source: Value, *, alpha: Scalar = 1) -> Value:
    source = source if alpha == 1 else source * op.cast(alpha, x.dtype)
    return _indexed(op, x, dim, index, source, "sum", True)


@aten("index_copy")
def index_copy(op: AtenBuilder, x: Value, dim: int, index: Value, source: Value) -> Value:
    return _indexed(op, x, dim, index, source, None, True)


@aten("index_reduce")
def index_reduce(
    op: AtenBuilder, x: Value, dim: int, index: Value, source: Value, reduce: str, *, include_self: bool = True
) -> Value:
    return _indexed(op, x, dim, index, source, reduce, include_self)


@aten("index_fill")
def index_fill(op: AtenBuilder, x: Value, dim: int, index: Value, value: Value | Scalar) -> Value:
    shape = op.input_shape(0)
    x, full = _first(op, x, shape)
    dim %= len(full)
    # Here, as in ONNX, negative indices count from the end.
    places, count = op.Reshape(op.cast(index, _INT64), [-1]), op.input_shape(2) or [1]
    nowhere, ones = (op.expand(op.const(np.array(n)), size, []) for n, size in ((0, [full[dim]]), (1, count)))
    hit = op.Cast(op.ScatterElements(nowhere, places, ones, axis=0), to=ir.DataType.BOOL)
    chosen = op.Reshape(hit, [-1 if axis == dim else 1 for axis in range(len(full))])
    y = op.Where(chosen, op.cast(value, x.dtype), x)
    return y if shape else op.Reshape(y, np.zeros(0, np.int64))


@aten("put")
def put(op: AtenBuilder, x: Value, index: Value, source: Value, accumulate: bool = False) -> Value:
    shape = op.input_shape(0)
    flat, places = op.Reshape(x, [-1]), op.Reshape(op.cast(index, _INT64), [-1])
    y = op.ScatterElements(flat, places, op.Reshape(source, [-1]), axis=0, reduction="add" if accumulate else None)
    return op.reshape(y, shape, [-1])


@aten("diagonal_scatter")
def diagonal_scatter(op: AtenBuilder, x: Value, source: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    """The diagonal's places in the two axes flattened to one, written to."""
    shape = op.input_shape(0)
    rank = len(shape)
    axes = [d for d in range(rank) if d not in (dim1 % rank, dim2 % rank)]
    perm = [*axes, dim1 % rank, dim2 % rank]
    rows, columns = shape[perm[-2]], shape[perm[-1]]
    lead = [shape[d] for d in axes]
    count = op.input_shape(1)[-1]
    places = diagonal_places(op, count, columns, offset)
    flat = op.reshape(op.Transpose(x, perm=perm), [*lead, rows * columns], [*lead, rows, columns])
    index = op.expand(places, [*lead, count], [count])
    y = op.ScatterElements(flat, index, op.cast(source, op.dtype), axis=-1)
    back = [perm.index(d) for d in range(rank)]
    return op.Transpose(op.reshape(y, [*lead, rows, columns], []), perm=back)
