"""Linear algebra in standard operators: elimination and rotations by loops over columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.functions.matrices import inner_sizes, shape_of_stack
from ontrain.functions.registry import composite
from ontrain.graph import Builder, repeat, static_dims
from ontrain.operators import MICROSOFT, Value, dims, transposed

__all__: list[str] = []

Types = list[tuple[ir.DataType, ir.Shape]]
_SWEEPS = 12
"""Rounds of rotations: they converge quadratically, and matrices of a hundred rows take nine."""


@composite("Cholesky", like=[0])
def cholesky(op: Builder, x: Value) -> Value:
    """The lower triangle L with L Lᵀ = x; of x the lower triangle is read."""
    n, _ = inner_sizes(x)
    if not n:
        return op.Identity(x)
    places = np.arange(n)

    def column(
        op: Builder, at: Value, states: Sequence[Any], rows: Sequence[Any], captured: Sequence[Any]
    ) -> tuple[None, list[Value], list[Value]]:
        (left,) = states
        here = op.Cast(op.Equal(op.const(places), at), to=left.dtype)  # [n]
        below = op.Cast(op.GreaterOrEqual(op.const(places), at), to=left.dtype)
        values = op.ReduceSum(left * here, [-1], keepdims=0)  # […, n]
        pivot = op.ReduceSum(values * here, [-1], keepdims=1)
        values = values / op.Sqrt(pivot) * below
        return None, [left - op.Unsqueeze(values, [-1]) * op.Unsqueeze(values, [-2])], [values]

    _, (columns,) = repeat(op, column, trip=n, carried=[_mirrored(op, x)])
    return op.Transpose(columns, perm=[*range(1, len(dims(x))), 0])


def _cholesky_ex_types(inputs: Sequence[Any], **_: object) -> Types:
    return [(inputs[0].dtype, inputs[0].shape), (ir.DataType.INT32, ir.Shape(list(inputs[0].shape)[:-2]))]


@composite("CholeskyEx", infer=_cholesky_ex_types)
def cholesky_ex(op: Builder, x: Value) -> tuple[Value, Value]:
    """The lower triangle L with L Lᵀ = x, and the order of the first leading minor that is not positive, or zero.

    Where there is such a minor, L is not a number from its row on.
    """
    n, _ = inner_sizes(x)
    factor = op.composite("Cholesky", x)
    if not n:
        return factor, op.Expand(op.const(np.array(0, np.int32)), shape_of_stack(op, x))
    diagonal = op.ReduceSum(op.Where(op.const(np.eye(n, dtype=bool)), factor, op.const(0.0, x.dtype)), [-1], keepdims=0)
    fails = op.Cast(op.Not(op.Greater(diagonal, op.const(0.0, x.dtype))), to=ir.DataType.INT32)
    fails = op.Where(op.IsInf(diagonal), op.const(np.array(1, np.int32)), fails)
    first = op.Cast(op.ArgMax(fails, axis=-1, keepdims=0) + op.const(np.array(1, np.int64)), to=ir.DataType.INT32)
    return factor, first * op.ReduceMax(fails, [-1], keepdims=0)


@composite("TriangularSolve", like=[1])
def triangular_solve(op: Builder, a: Value, b: Value, *, upper: int = 0, unit: int = 0, transpose: int = 0) -> Value:
    """X with op(A) X = B, where op(A) is the triangle, transposed or not; a unit triangle has ones on its diagonal."""
    (n, _), rank = inner_sizes(a), len(dims(a))
    if transpose:
        a, upper = op.Transpose(a, perm=[*range(rank - 2), rank - 1, rank - 2]), 1 - upper
    places = np.arange(n)[:, None]

    def row(
        op: Builder, at: Value, states: Sequence[Any], rows: Sequence[Any], captured: Sequence[Any]
    ) -> tuple[None, list[Value], list[Value]]:
        (x,), (a, b) = states, captured
        here = op.Cast(op.Equal(op.const(places), at), to=x.dtype)  # [n, 1]
        factors = op.ReduceSum(a * here, [-2], keepdims=1)  # […, 1, n]
        value = op.ReduceSum(b * here, [-2], keepdims=1) - op.MatMul(factors, x)
        if not unit:
            value = value / op.MatMul(factors, here)
        return None, [x + here * value], []

    nothing = op.Expand(op.const(0.0, b.dtype), op.shape_of(b))
    (x,), _ = repeat(op, row, trip=n, carried=[nothing], captured=[a, b], reverse=bool(upper))
    return x


@composite("Solve", like=[1])
def solve(op: Builder, a: Value, b: Value) -> Value:
    """X with A X = B."""
    return op.MatMul(op.call(MICROSOFT, "Inverse", [a], {}, 1), b)


@composite("LogAbsDet", infer=lambda inputs, **_: [(inputs[0].dtype, ir.Shape(list(inputs[0].shape)[:-2]))])
def log_abs_det(op: Builder, x: Value) -> Value:
    """The logarithm of the determinant's absolute value."""
    return op.Log(op.Abs(op.Det(x)))


def _eigh_types(inputs: Sequence[Any], **_: object) -> Types:
    shape = list(inputs[0].shape)
    return [(inputs[0].dtype, ir.Shape(shape[:-1])), (inputs[0].dtype, ir.Shape(shape))]


@composite("Eigh", infer=_eigh_types)
def eigh(op: Builder, x: Value) -> tuple[Value, Value]:
    """Eigenvalues in ascending order, and eigenvectors as columns, of symmetric matrices, by Jacobi's rotations.

    Of x the lower triangle is read. Source: Golub and Van Loan, Matrix computations, section 8.5.
    """
    n, _ = inner_sizes(x)
    whole, eye = _mirrored(op, x), np.eye(n)
    pairs = _pairs(n)
    vectors = op.Expand(op.const(eye, x.dtype), op.shape_of(x))
    if len(pairs):

        def rotation(
            op: Builder, at: Value, states: Sequence[Any], rows: Sequence[Any], captured: Sequence[Any]
        ) -> tuple[None, list[Value], list[Value]]:
            (a, v), (p, q) = states, _basis(op, rows[0], eye, states[0].dtype)
            of_p, of_q = (op.MatMul(a, op.Unsqueeze(e, [1])) for e in (p, q))  # columns […, n, 1]
            turn = _turn(op, p, q, *(op.MatMul(op.Unsqueeze(e, [0]), c) for e, c in ((p, of_p), (p, of_q), (q, of_q))))
            return None, [op.MatMul(op.MatMul(transposed(op, turn), a), turn), op.MatMul(v, turn)], []

        (whole, vectors), _ = repeat(op, rotation, trip=len(pairs), carried=[whole, vectors], scanned=[op.const(pairs)])
    values = op.ReduceSum(whole * op.const(eye, x.dtype), [-1], keepdims=0)
    values, order = op.TopK(values, op.const(np.array([n], np.int64)), axis=-1, largest=0, outputs=2)
    order = op.Expand(op.Unsqueeze(order, [-2]), op.shape_of(x))
    return values, op.GatherElements(vectors, order, axis=-1)


def _svd_types(inputs: Sequence[Any], *, full: int) -> Types:
    *lead, rows, columns = list(inputs[0].shape)
    k, dtype = min(rows, columns), inputs[0].dtype
    left, right = (rows, columns) if full else (k, k)
    return [
        (dtype, ir.Shape([*lead, k])),
        (dtype, ir.Shape([*lead, rows, left])),
        (dtype, ir.Shape([*lead, right, columns])),
    ]


@composite("Svd", infer=_svd_types)
def svd(op: Builder, x: Value, *, full: int = 0) -> tuple[Value, Value, Value]:
    """s, U, Vᵀ of the thin singular value decomposition, by rotations that make the columns orthogonal.

    In the full one U and V are square; the further columns are those that complete them to an orthonormal basis.
    Source: Golub and Van Loan, Matrix computations, section 8.6.3.
    """
    rows, columns = inner_sizes(x)
    if columns > rows:
        values, u, vh = op.composite("Svd", transposed(op, x), outputs=3, full=full)
        return values, transposed(op, vh), transposed(op, u)
    eye, pairs = np.eye(columns), _pairs(columns)
    square = shape_of_stack(op, x, columns, columns)
    table, vectors = x, op.Expand(op.const(eye, x.dtype), square)
    if len(pairs):

        def rotation(
            op: Builder, at: Value, states: Sequence[Any], rows: Sequence[Any], captured: Sequence[Any]
        ) -> tuple[None, list[Value], list[Value]]:
            (a, v), (p, q) = states, _basis(op, rows[0], eye, states[0].dtype)
            of_p, of_q = (op.MatMul(a, op.Unsqueeze(e, [1])) for e in (p, q))
            products = ((of_p, of_p), (of_p, of_q), (of_q, of_q))
            turn = _turn(op, p, q, *(op.ReduceSum(left * other, [-2], keepdims=1) for left, other in products))
            return None, [op.MatMul(a, turn), op.MatMul(v, turn)], []

        (table, vectors), _ = repeat(op, rotation, trip=len(pairs), carried=[table, vectors], scanned=[op.const(pairs)])
    values = op.Sqrt(op.ReduceSum(table * table, [-2], keepdims=0))
    values, order = op.TopK(values, op.const(np.array([columns], np.int64)), axis=-1, outputs=2)
    order = op.Unsqueeze(order, [-2])
    table = op.GatherElements(table, op.Expand(order, op.shape_of(x)), axis=-1)
    vectors = op.GatherElements(vectors, op.Expand(order, square), axis=-1)
    u = table / op.Unsqueeze(values, [-2])
    if full and rows > columns:
        basis, _ = op.composite("Qr", u, outputs=2, complete=1)
        u = op.Concat(u, op.Slice(basis, [columns], [rows], [-1]), axis=-1)
    return values, u, transposed(op, vectors)


def _mirrored(op: Builder, x: Value) -> Value:
    """The symmetric matrices whose lower triangle is that of x."""
    strict = op.Trilu(x, op.const(np.array(-1, np.int64)), upper=0)
    return op.Trilu(x, upper=0) + transposed(op, strict)


def _pairs(n: int) -> np.ndarray[Any, Any]:
    """The columns that are rotated against each other, one pair after another, in all sweeps."""
    return np.array([(p, q) for p in range(n) for q in range(p + 1, n)] * _SWEEPS, np.int64).reshape(-1, 2)


def _basis(op: Builder, pair: Value, eye: np.ndarray[Any, Any], dtype: ir.DataType) -> tuple[Value, Value]:
    """The unit vectors [n] of a pair of columns."""
    unit = op.const(eye, dtype)
    p, q = (op.Gather(unit, op.Gather(pair, i), axis=0) for i in (0, 1))
    return p, q


def _turn(op: Builder, p: Value, q: Value, app: Value, apq: Value, aqq: Value) -> Value:
    """The rotation […, n, n] of columns p and q that takes the element apq […, 1, 1] between them to zero."""
    one, zero = op.const(1.0, app.dtype), op.const(0.0, app.dtype)
    flat = op.Equal(apq, zero)
    theta = (aqq - app) / op.Where(flat, one, apq * 2.0)
    sign = op.Where(op.Less(theta, zero), -one, one)
    tangent = op.Where(flat, zero, sign / (op.Abs(theta) + op.Sqrt(theta * theta + 1.0)))
    cosine = 1 / op.Sqrt(tangent * tangent + 1.0)
    sine = tangent * cosine
    pp, pq, qp, qq = (op.Unsqueeze(a, [1]) * op.Unsqueeze(b, [0]) for a, b in ((p, p), (p, q), (q, p), (q, q)))
    unit = op.const(np.eye(static_dims(p)[0]), app.dtype)
    return unit + (cosine - 1.0) * (pp + qq) + sine * (pq - qp)
