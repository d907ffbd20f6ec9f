"""Eigenvalues and eigenvectors of matrices without symmetry, in standard operators.

A complex matrix A + iB is held here as a real one of twice the size, [[A, −B], [B, A]]: products, transposes and
triangles of such matrices are those of the complex ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.functions.registry import composite
from ontrain.graph import Builder, repeat, static_dims
from ontrain.operators import Value, parts_of_whole, transposed, whole_matrix

__all__: list[str] = []

Types = list[tuple[ir.DataType, ir.Shape]]
Pair = tuple[Value, Value]
_ROUNDS = 30
"""Most rotations for each eigenvalue, as in LAPACK's zlahqr; two or three are usual."""


def _eig_types(inputs: Sequence[Any], **_: object) -> Types:
    values, vectors = ir.Shape(list(inputs[0].shape)[:-1]), inputs[0].shape
    return [(inputs[0].dtype, shape) for shape in (values, values, vectors, vectors)]


@composite("Eig", infer=_eig_types)
def eig(op: Builder, x: Value, imag: Value | None = None) -> tuple[Value, ...]:
    """Eigenvalues of real matrices x, or of complex ones x + i imag, and eigenvectors of length one as columns.

    Both come as real parts and imaginary parts. Their order, and the phase of a vector, are the implementation's. The
    matrix becomes a triangle by the shifted QR iteration; the triangle's eigenvectors follow by back substitution.
    Source: Golub and Van Loan, Matrix computations, sections 7.5 and 7.6.4.
    """
    *lead, n, _ = static_dims(x)
    if x.dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16):
        single = [None if part is None else op.Cast(part, to=ir.DataType.FLOAT) for part in (x, imag)]
        return tuple(op.Cast(part, to=x.dtype) for part in op.composite("Eig", *single, outputs=4))
    if not math.prod([*lead, n]):
        empty = op.Expand(op.const(0.0, x.dtype), [*lead, n])
        return empty, empty, op.Identity(x), op.Identity(x)
    nothing = op.Expand(op.const(0.0, x.dtype), [*lead, n, n])
    start = op.Expand(op.const(np.eye(2 * n), x.dtype), [*lead, 2 * n, 2 * n])
    last = op.Expand(op.const(float(n - 1), x.dtype), [*lead, 1, 1])
    size = op.Sqrt(op.ReduceSum(_squares(x, nothing if imag is None else imag), [-2, -1], keepdims=1))
    triangle = whole_matrix(op, x, nothing if imag is None else imag)
    if n > 1:
        go = op.const(np.array(True))
        (triangle, start, _), _ = repeat(
            op, _round, trip=_ROUNDS * n, carried=[triangle, start, last], captured=[size], cond=go
        )
    real, imag = parts_of_whole(op, triangle)
    eye = op.const(np.eye(n), x.dtype)
    values = op.ReduceSum(real * eye, [-1], keepdims=0), op.ReduceSum(imag * eye, [-1], keepdims=0)
    vectors = parts_of_whole(op, op.MatMul(start, _of_triangle(op, (real, imag), values, size)))
    return *values, *_normal(op, vectors)


def _squares(real: Value, imag: Value) -> Value:
    return real * real + imag * imag


def _times(a: Pair, b: Pair) -> Pair:
    return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]


def _tiny(like: Value) -> float:
    return float(np.finfo(like.dtype.numpy()).tiny)


def _epsilon(like: Value) -> float:
    return float(np.finfo(like.dtype.numpy()).eps)


def _over(op: Builder, a: Pair, b: Pair) -> Pair:
    size = op.Max(_squares(*b), op.const(_tiny(b[0]), b[0].dtype))
    real, imag = _times(a, (b[0], op.Neg(b[1])))
    return real / size, imag / size


def _root(op: Builder, x: Pair) -> Pair:
    """The square root with a real part that is not negative."""
    size = op.Sqrt(_squares(*x))
    zero = op.const(0.0, size.dtype)
    real, imag = (op.Sqrt(op.Max(part, zero) * 0.5) for part in (size + x[0], size - x[0]))
    return real, op.Where(op.Less(x[1], zero), -imag, imag)


def _round(
    op: Builder, at: Value, states: Sequence[Any], scanned: Sequence[Any], captured: Sequence[Any]
) -> tuple[Value, list[Value], list[Value]]:
    """Q* A Q for the QR factors of A's shifted part up to row `last`, which falls where its row has converged."""
    (whole, vectors, last), (size,) = states, captured
    n, dtype = static_dims(whole)[-1] // 2, whole.dtype
    real, imag = parts_of_whole(op, whole)
    down = op.const(np.arange(n)[:, None], dtype)
    right = op.const(np.arange(n), dtype)
    here, above = (op.Cast(op.Equal(down, place), to=dtype) for place in (last, last - 1.0))  # […, n, 1]

    def element(row: Value, column: Value) -> Pair:
        """[…, 1, 1]"""
        turned = transposed(op, row)
        a, b = (op.MatMul(op.MatMul(turned, part), column) for part in (real, imag))
        return a, b

    shift = _shift(op, element(above, above), element(above, here), element(here, above), element(here, here))
    # Every tenth round another shift takes an iteration that goes in circles out of its circle.
    odd = op.Equal(op.Mod(at, op.const(np.array(10, np.int64))), op.const(np.array(9, np.int64)))
    shift = (op.Where(odd, shift[0] + size * 0.1, shift[0]), op.Where(odd, shift[1] + size * 0.05, shift[1]))
    eye = op.const(np.eye(n), dtype)
    inside = op.And(op.LessOrEqual(down, last), op.LessOrEqual(right, last))
    shifted = op.Where(inside, real - shift[0] * eye, eye), op.Where(inside, imag - shift[1] * eye, eye * 0.0)
    factors = whole_matrix(op, *op.composite("ComplexQr", *shifted, outputs=4)[:2])
    turning = op.Greater(last, op.const(0.0, dtype))
    factors = op.Where(turning, factors, op.const(np.eye(2 * n), dtype))
    whole = op.MatMul(op.MatMul(transposed(op, factors), whole), factors)
    real, imag = parts_of_whole(op, whole)
    left = op.Cast(op.Less(right, last), to=dtype)
    rest = op.MatMul(transposed(op, here), _squares(real, imag) * left)  # […, 1, n]
    rest = op.ReduceSum(rest, [-1], keepdims=1)
    least = _epsilon(size) * size
    last = op.Where(op.And(op.LessOrEqual(rest, least * least), turning), last - 1.0, last)
    go = op.Greater(op.ReduceMax(last, keepdims=0), op.const(0.0, dtype))
    return go, [whole, op.MatMul(vectors, factors), last], []


def _shift(op: Builder, a: Pair, b: Pair, c: Pair, d: Pair) -> Pair:
    """Wilkinson's: the eigenvalue of [[a, b], [c, d]] that is nearer to d."""
    half = (a[0] - d[0]) * 0.5, (a[1] - d[1]) * 0.5
    product, square = _times(b, c), _times(half, half)
    root = _root(op, (square[0] + product[0], square[1] + product[1]))
    aligned = op.Less(half[0] * root[0] + half[1] * root[1], op.const(0.0, root[0].dtype))
    root = op.Where(aligned, -root[0], root[0]), op.Where(aligned, -root[1], root[1])
    step = _over(op, product, (half[0] + root[0], half[1] + root[1]))
    return d[0] - step[0], d[1] - step[1]


def _of_triangle(op: Builder, x: Pair, values: Pair, size: Value) -> Value:
    """The eigenvectors of a triangle, as columns of a triangle with ones on the diagonal."""
    *lead, n, _ = static_dims(x[0])
    dtype = size.dtype
    upper = [op.Trilu(part, op.const(np.array(1, np.int64)), upper=1) for part in x]
    least = size * _epsilon(size) + _tiny(size)  # […, 1, 1]
    rows = [op.Unsqueeze(part, [-2]) for part in values]  # […, 1, n]

    def row(
        op: Builder, at: Value, states: Sequence[Any], scanned: Sequence[Any], captured: Sequence[Any]
    ) -> tuple[None, list[Value], list[Value]]:
        (real, imag), (a, b, *values, least) = states, captured
        here = op.Unsqueeze(op.Gather(op.const(np.eye(n), dtype), at, axis=0), [0])  # [1, n]
        a, b = op.MatMul(here, a), op.MatMul(here, b)  # […, 1, n]
        sums = op.MatMul(b, imag) - op.MatMul(a, real), op.Neg(op.MatMul(a, imag) + op.MatMul(b, real))
        apart = [op.ReduceSum(part * here, [-1], keepdims=1) - part for part in values]
        equal = op.Less(_squares(*apart), least * least)
        tops = _over(op, sums, (op.Where(equal, least, apart[0]), op.Where(equal, least * 0.0, apart[1])))
        after = op.Greater(op.const(np.arange(n)), at)
        zero, down = op.const(0.0, dtype), transposed(op, here)
        top = op.Where(after, tops[0], zero) + here, op.Where(after, tops[1], zero)
        return None, [real + down * top[0], imag + down * top[1]], []

    nothing = op.Expand(op.const(0.0, dtype), [*lead, n, n])
    vectors, _ = repeat(op, row, trip=n, carried=[nothing, nothing], captured=[*upper, *rows, least], reverse=True)
    return whole_matrix(op, *vectors)


def _normal(op: Builder, vectors: Pair) -> Pair:
    """Each column over its length, turned so that its largest element is real."""
    squares = _squares(*vectors)
    length = op.Sqrt(op.ReduceSum(squares, [-2], keepdims=1))
    place = op.ArgMax(squares, axis=-2, keepdims=1)
    real, imag = (op.GatherElements(part, place, axis=-2) for part in vectors)
    size = op.Sqrt(_squares(real, imag)) * length
    return _times(vectors, (real / size, op.Neg(imag) / size))
