"""Rows that are worked on and rows that are not: choosing them, packing them together, putting them back."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.functions.registry import composite
from ontrain.graph import Builder, static_dims
from ontrain.operators import Value

__all__: list[str] = []


def _selected_types(inputs: list[Any], *, bucket: int = 1) -> list[tuple[ir.DataType, ir.Shape]]:
    return [(ir.DataType.INT64, ir.Shape([bucket]))]


@composite("SelectRows", infer=_selected_types)
def select_rows(op: Builder, keep: Value, *, bucket: int = 1) -> Value:
    """The numbers of the rows that bool `keep` [rows] marks, in order, then of others up to `bucket` in all.

    No number comes twice. There may not be more marked rows than `bucket`.
    """
    (rows,) = static_dims(keep)
    keep_places = op.Cast(keep, to=ir.DataType.INT64)
    before = op.CumSum(keep_places, op.const(0, ir.DataType.INT64))
    numbers = np.arange(rows, dtype=np.int64)
    count = op.ReduceSum(keep_places, keepdims=0)
    # A kept row's place is how many come before it; the others follow behind all of them.
    place = op.Where(keep, before - 1, op.const(numbers) - before + count)
    order = op.ScatterElements(op.const(np.zeros(rows, np.int64)), place, op.const(numbers), axis=0)
    return op.Slice(order, np.array([0]), np.array([bucket]), np.array([0]))


def _packed_types(inputs: list[Any]) -> list[tuple[ir.DataType, ir.Shape]]:
    x, indices = inputs
    return [(x.dtype, ir.Shape([*indices.shape, *list(x.shape)[1:]]))]


@composite("PackRows", infer=_packed_types)
def pack_rows(op: Builder, x: Value, indices: Value) -> Value:
    """Rows of x [N, …] by int64 indices [R], none of them twice or negative: [R, …]."""
    return op.Gather(x, indices, axis=0)


def _unpacked_types(inputs: list[Any], *, rows: int = 1) -> list[tuple[ir.DataType, ir.Shape]]:
    x = inputs[0]
    return [(x.dtype, ir.Shape([rows, *list(x.shape)[1:]]))]


@composite("UnpackRows", infer=_unpacked_types)
def unpack_rows(op: Builder, x: Value, indices: Value, *, rows: int = 1) -> Value:
    """The inverse of PackRows: x [R, …] at its indices [R] of [rows, …], zeros elsewhere."""
    count, *rest = static_dims(x)
    zeros = op.Expand(op.const(0.0, x.dtype), [rows, *rest])
    # No index comes twice: a scatter without a reduction, whose order does not matter.
    return op.ScatterND(zeros, op.Reshape(indices, [count, 1]), x)


def _spread_types(inputs: list[Any]) -> list[tuple[ir.DataType, ir.Shape]]:
    x, places = inputs[:2]
    return [(x.dtype, ir.Shape([*places.shape, *list(x.shape)[1:]]))]


@composite("SpreadRows", infer=_spread_types)
def spread_rows(op: Builder, x: Value, places: Value, indices: Value) -> Value:
    """Packed rows x [R, …] at their indices [R] of [rows, …], copies of the first of them elsewhere.

    `places` [rows] says where in x a row is, zero for those that are not. The copies stand for rows that count for
    nothing, so they take no gradient; they are not zeros because a model may divide by what it finds in a row.
    """
    return op.Gather(x, places, axis=0)
