"""Factorisations of matrices in standard operators: elimination and reflections by loops over columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.functions.matrices import inner_sizes, is_empty, shape_of_stack
from ontrain.functions.registry import composite
from ontrain.graph import Builder, repeat
from ontrain.operators import Value, dims, transposed

__all__: list[str] = []

Types = list[tuple[ir.DataType, ir.Shape]]
_INT32, _INT64 = ir.DataType.INT32, ir.DataType.INT64
_TERMS = 20
"""Of the series of exp for matrices of norm ½: the last one is below 2⁻²⁰ / 20! = 4e-25."""


def _geqrf_types(inputs: Sequence[Any], **_: object) -> Types:
    *lead, rows, columns = list(inputs[0].shape)
    return [(inputs[0].dtype, inputs[0].shape), (inputs[0].dtype, ir.Shape([*lead, min(rows, columns)]))]


@composite("Geqrf", infer=_geqrf_types)
def geqrf(op: Builder, x: Value) -> tuple[Value, ...]:
    """R above the diagonal, the reflections' vectors below it, and their factors, as LAPACK's dgeqrf has them.

    The reflection of column j is I − τ v vᵀ, with v one at place j and zero above.
    Source: Golub and Van Loan, Matrix computations, section 5.2.1.
    """
    rows, columns = inner_sizes(x)
    places, k, rank = np.arange(rows), min(rows, columns), len(dims(x))
    if not k:
        return op.Identity(x), op.Expand(op.const(0.0, x.dtype), shape_of_stack(op, x, k))

    def column(
        op: Builder, at: Value, states: Sequence[Any], scanned: Sequence[Any], captured: Sequence[Any]
    ) -> tuple[None, list[Value], list[Value]]:
        (left,) = states
        here = op.Cast(op.Equal(op.const(places), at), to=left.dtype)  # [rows]
        below = op.Cast(op.Greater(op.const(places), at), to=left.dtype)
        values = op.Gather(left, at, axis=-1)  # […, rows]
        head = op.ReduceSum(values * here, [-1], keepdims=1)
        rest = op.ReduceSum(values * values * below, [-1], keepdims=1)
        one, zero = op.const(1.0, left.dtype), op.const(0.0, left.dtype)
        flat = op.Equal(rest, zero)
        norm = op.Sqrt(op.Where(flat, one, head * head + rest))
        turned = op.Where(op.Less(head, zero), norm, -norm)
        factor = op.Where(flat, zero, (turned - head) / turned)
        vector = values * below / op.Where(flat, one, head - turned) + here
        product = op.MatMul(op.Unsqueeze(vector, [-2]), left)  # […, 1, columns]
        left = left - op.Unsqueeze(factor * vector, [-1]) * product
        return None, [left], [vector * below, op.Squeeze(factor, [-1])]

    (left,), (vectors, factors) = repeat(op, column, trip=k, carried=[x])
    vectors = op.Transpose(vectors, perm=[*range(1, rank), 0])  # […, rows, k]
    if columns > k:
        nothing = op.Expand(op.const(0.0, x.dtype), shape_of_stack(op, x, rows, columns - k))
        vectors = op.Concat(vectors, nothing, axis=-1)
    return op.Trilu(left, upper=1) + vectors, op.Transpose(factors, perm=[*range(1, rank - 1), 0])


@composite("HouseholderProduct", like=[0])
def householder_product(op: Builder, vectors: Value, factors: Value) -> Value:
    """The first columns of (I − τ₁ v₁ v₁ᵀ) (I − τ₂ v₂ v₂ᵀ) …, with the vectors as Geqrf has them.

    The product is I − V (I + D S)⁻¹ D Vᵀ, where D has the factors, and S is the part of Vᵀ V above the diagonal.
    Source: Joffrain et al., Accumulating Householder transformations, revisited, 2006.
    """
    rows, columns = inner_sizes(vectors)
    (k,) = inner_sizes(factors, 1)
    eye = op.const(np.eye(rows, columns), vectors.dtype)
    if not k:
        return op.Expand(eye, op.shape_of(vectors))
    below = op.Trilu(op.Slice(vectors, [0], [k], [-1]), op.const(np.array(-1, np.int64)), upper=0)
    v = below + op.const(np.eye(rows, k), vectors.dtype)
    factors = op.Unsqueeze(factors, [-1])
    above = op.Trilu(op.MatMul(transposed(op, v), v), op.const(np.array(1, np.int64)), upper=1)
    part = factors * op.MatMul(transposed(op, v), eye)
    return eye - op.MatMul(v, op.composite("TriangularSolve", factors * above, part, upper=1, unit=1))


def _qr_types(inputs: Sequence[Any], *, complete: int) -> Types:
    *lead, rows, columns = list(inputs[0].shape)
    k, dtype = rows if complete else min(rows, columns), inputs[0].dtype
    return [(dtype, ir.Shape([*lead, rows, k])), (dtype, ir.Shape([*lead, k, columns]))]


@composite("Qr", infer=_qr_types)
def qr(op: Builder, x: Value, *, complete: int = 0) -> tuple[Value, ...]:
    """Q with orthonormal columns and the upper triangle R with Q R = x; if complete, Q is square."""
    rows, columns = inner_sizes(x)
    k = rows if complete else min(rows, columns)
    vectors, factors = op.composite("Geqrf", x, outputs=2)
    r = op.Slice(op.Trilu(vectors, upper=1), [0], [k], [-2])
    if columns < k:
        nothing = op.Expand(op.const(0.0, x.dtype), shape_of_stack(op, x, rows, k - columns))
        vectors = op.Concat(vectors, nothing, axis=-1)
    return op.composite("HouseholderProduct", op.Slice(vectors, [0], [k], [-1]), factors), r


def _lu_types(inputs: Sequence[Any], **_: object) -> Types:
    *lead, rows, columns = list(inputs[0].shape)
    return [
        (inputs[0].dtype, inputs[0].shape),
        (_INT32, ir.Shape([*lead, min(rows, columns)])),
        (_INT32, ir.Shape(lead)),
    ]


@composite("Lu", infer=_lu_types)
def lu(op: Builder, x: Value) -> tuple[Value, ...]:
    """L below the diagonal and U above it, with L U the rows of x in the order that the pivots say, as LAPACK's dgetrf.

    Pivot j is the row, counted from one, that row j was exchanged with. The third result is the first column, counted
    from one, whose pivot is zero, or zero. Source: Golub and Van Loan, Matrix computations, section 3.4.
    """
    rows, columns = inner_sizes(x)
    k, down = min(rows, columns), np.arange(rows)
    if is_empty(x):
        pivots = op.Expand(op.const(np.array(0, np.int32)), shape_of_stack(op, x, k))
        return op.Identity(x), pivots, op.Expand(op.const(np.array(0, np.int32)), shape_of_stack(op, x))

    def column(
        op: Builder, at: Value, states: Sequence[Any], scanned: Sequence[Any], captured: Sequence[Any]
    ) -> tuple[None, list[Value], list[Value]]:
        (left,) = states
        places = op.const(down)
        size = op.Abs(op.Gather(left, at, axis=-1))  # […, rows]
        size = op.Where(op.GreaterOrEqual(places, at), size, op.const(-1.0, left.dtype))
        pivot = op.ArgMax(size, axis=-1, keepdims=1)  # […, 1]
        order = op.Where(op.Equal(places, at), pivot, op.Where(op.Equal(places, pivot), at, places))
        left = op.GatherElements(left, op.Expand(op.Unsqueeze(order, [-1]), op.shape_of(left)), axis=-2)
        values, row = op.Gather(left, at, axis=-1), op.Gather(left, at, axis=-2)  # […, rows], […, columns]
        head = op.Unsqueeze(op.Gather(values, at, axis=-1), [-1])  # […, 1]
        one, zero = op.const(1.0, left.dtype), op.const(0.0, left.dtype)
        flat = op.Equal(head, zero)
        multiples = op.Where(op.Greater(places, at), values / op.Where(flat, one, head), zero)
        right = op.Where(op.Greater(op.const(np.arange(columns)), at), row, zero)
        left = left - op.Unsqueeze(multiples, [-1]) * op.Unsqueeze(right, [-2])
        here = op.Equal(op.const(np.arange(columns)), at)
        below = op.Where(op.Greater(places, at), multiples, values)
        left = op.Where(here, op.Unsqueeze(below, [-1]), left)
        return None, [left], [op.Squeeze(pivot, [-1]), op.Squeeze(flat, [-1])]

    (left,), (pivots, flat) = repeat(op, column, trip=k, carried=[x])
    turn = [*range(1, len(dims(x)) - 1), 0]
    pivots = op.Cast(op.Transpose(pivots, perm=turn) + op.const(np.array(1, np.int64)), to=_INT32)
    flat = op.Cast(op.Transpose(flat, perm=turn), to=_INT32)
    first = op.ArgMax(flat, axis=-1, keepdims=0) + op.const(np.array(1, np.int64))
    return left, pivots, op.Cast(first, to=_INT32) * op.ReduceMax(flat, [-1], keepdims=0)


def _order_types(inputs: Sequence[Any], *, rows: int) -> Types:
    return [(_INT64, ir.Shape([*list(inputs[0].shape)[:-1], rows]))]


@composite("PivotOrder", infer=_order_types)
def pivot_order(op: Builder, pivots: Value, *, rows: int = 0) -> Value:
    """The order of rows that exchanges by pivots, as Lu has them, lead to."""
    (k,), lead = inner_sizes(pivots, 1), len(dims(pivots)) - 1
    order = op.Expand(op.const(np.arange(rows)), shape_of_stack(op, pivots, rows, axes=1))
    if not k:
        return order
    turn = [lead, *range(lead)]

    def exchange(
        op: Builder, at: Value, states: Sequence[Any], scanned: Sequence[Any], captured: Sequence[Any]
    ) -> tuple[None, list[Value], list[Value]]:
        (order,), places = states, op.const(np.arange(rows))
        pivot = op.Unsqueeze(scanned[0], [-1])
        moved = op.Where(op.Equal(places, at), pivot, op.Where(op.Equal(places, pivot), at, places))
        return None, [op.GatherElements(order, moved, axis=-1)], []

    ahead = op.Cast(op.Transpose(pivots, perm=turn), to=_INT64) - op.const(np.array(1, np.int64))
    (order,), _ = repeat(op, exchange, trip=k, carried=[order], scanned=[ahead])
    return order


def _inverse_types(inputs: Sequence[Any], **_: object) -> Types:
    return [(inputs[0].dtype, inputs[0].shape), (_INT32, ir.Shape(list(inputs[0].shape)[:-2]))]


@composite("InverseEx", infer=_inverse_types)
def inverse_ex(op: Builder, x: Value) -> tuple[Value, ...]:
    """The inverse, and the first column whose pivot is zero, counted from one, or zero: then there is no inverse."""
    n, _ = inner_sizes(x)
    factors, pivots, info = op.composite("Lu", x, outputs=3)
    order = op.composite("PivotOrder", pivots, rows=n)
    rows = op.Gather(op.const(np.eye(n), x.dtype), order, axis=0)
    part = op.composite("TriangularSolve", factors, rows, unit=1)
    return op.composite("TriangularSolve", factors, part, upper=1), info


@composite("MatrixExp", like=[0])
def matrix_exp(op: Builder, x: Value) -> Value:
    """Σ xⁿ / n!, by the series of x / 2ˢ, whose norm is at most ½, and s squarings.

    Source: Moler and Van Loan, Nineteen dubious ways to compute the exponential of a matrix, 2003, method 3.
    """
    n, _ = inner_sizes(x)
    if is_empty(x):
        return op.Identity(x)
    norm = op.ReduceMax(op.ReduceSum(op.Abs(x), [-2], keepdims=1), [-1], keepdims=1)  # […, 1, 1]
    norm = op.Max(norm, op.const(2.0**-40, x.dtype))
    times = op.Max(op.Ceil(op.Log(norm) * (1 / math.log(2))) + 1.0, op.const(0.0, x.dtype))
    unit = op.const(np.eye(n), x.dtype)
    scaled = x / op.Pow(op.const(2.0, x.dtype), times)
    power = unit + scaled * (1 / _TERMS)
    for term in range(_TERMS - 1, 0, -1):
        power = unit + op.MatMul(scaled, power) * (1 / term)

    def squaring(
        op: Builder, at: Value, states: Sequence[Any], scanned: Sequence[Any], captured: Sequence[Any]
    ) -> tuple[None, list[Value], list[Value]]:
        (power,), (times,) = states, captured
        again = op.Less(op.Cast(at, to=power.dtype), times)
        return None, [op.Where(again, op.MatMul(power, power), power)], []

    most = op.Cast(op.ReduceMax(times, keepdims=0), to=_INT64)
    (power,), _ = repeat(op, squaring, trip=most, carried=[power], captured=[times])
    return power


@composite("Pinv", infer=lambda inputs, **_: [(inputs[0].dtype, ir.Shape(_turned(list(inputs[0].shape))))])
def pinv(op: Builder, x: Value, atol: Value, rtol: Value, *, hermitian: int = 0) -> Value:
    """The pseudo-inverse, in which singular values up to max(atol, rtol · the greatest) count as zero.

    The bounds have the leading axes of x, or broadcast to them. If hermitian, x is symmetric, and of x the lower
    triangle is read.
    """
    if is_empty(x):
        return transposed(op, x)
    if hermitian:
        values, vectors = op.composite("Eigh", x, outputs=2)
        return op.MatMul(vectors * op.Unsqueeze(_inverted(op, values, atol, rtol), [-2]), transposed(op, vectors))
    s, u, vh = op.composite("Svd", x, outputs=3)
    return op.MatMul(transposed(op, vh) * op.Unsqueeze(_inverted(op, s, atol, rtol), [-2]), transposed(op, u))


def _turned(shape: list[Any]) -> list[Any]:
    return [*shape[:-2], shape[-1], shape[-2]]


def _inverted(op: Builder, values: Value, atol: Value, rtol: Value) -> Value:
    """One over each value […, k], zero for those that count as zero."""
    size = op.Abs(values)
    bound = op.Max(op.Unsqueeze(atol, [-1]), op.Unsqueeze(rtol, [-1]) * op.ReduceMax(size, [-1], keepdims=1))
    large = op.Greater(size, bound)
    return op.Where(large, 1.0 / op.Where(large, values, op.const(1.0, values.dtype)), op.const(0.0, values.dtype))
