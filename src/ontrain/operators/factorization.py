"""Factorisations of matrices by elimination and by reflections, and functions of matrices."""

from __future__ import annotations

import numpy as np

from ontrain.operators.complex_linalg import whole_matrix
from ontrain.operators.emit import Value
from ontrain.operators.gradients import Adjoints, Op, gradient
from ontrain.operators.linalg import inverse_rule
from ontrain.operators.matmul import transposed
from ontrain.operators.record import DOMAIN, WHEREVER, define
from ontrain.operators.shapes import static_dims

__all__: list[str] = []

define("Eig", domain=DOMAIN)
define("Geqrf", domain=DOMAIN)
define("HouseholderProduct", domain=DOMAIN)
define("InverseEx", domain=DOMAIN)
define("Lu", domain=DOMAIN)
define("MatrixExp", domain=DOMAIN)
define("Pinv", domain=DOMAIN)
define("PivotOrder", domain=DOMAIN, zero_gradient=WHEREVER)
define("Qr", domain=DOMAIN)


def _lower(op: Op, x: Value) -> Value:
    """The triangle below the diagonal."""
    return op.Trilu(x, op.const(np.array(-1, np.int64)), upper=0)


def _rows(op: Op, x: Value, start: int, end: int) -> Value:
    return op.Slice(x, [start], [end], [-2])


def _columns(op: Op, x: Value, start: int, end: int) -> Value:
    return op.Slice(x, [start], [end], [-1])


def _times_inverse_transposed(op: Op, x: Value, upper: Value) -> Value:
    """X U⁻ᵀ for an upper triangle U."""
    return transposed(op, op.composite("TriangularSolve", upper, transposed(op, x), upper=1))


@gradient("Qr", domain=DOMAIN)
def qr(op: Op, dq: Value | None, x: Value, *, complete: int = 0) -> Adjoints:
    """For a square R: (dQ + Q S) R⁻ᵀ, where S is the symmetric matrix with the lower triangle of R dRᵀ − dQᵀ Q.

    With more columns than rows, Q comes from the first ones alone, and R of the others is Qᵀ A.
    Source: Roberts and Roberts, QR and LQ decomposition matrix backpropagation algorithms, 2020.
    """
    rows, columns = static_dims(x)[-2:]
    q, r, dr = op.saved(0), op.saved(1), op.dys[1]
    if complete and rows > columns:
        raise op.refused("the further columns of a complete factorisation are not determined", 'set mode="reduced"')
    if columns <= rows:
        return _square_qr(op, dq, dr, q, r)
    others = None
    if dr is not None:
        later = _columns(op, dr, rows, columns)
        part = op.MatMul(_columns(op, x, rows, columns), transposed(op, later))
        others = op.MatMul(q, later)
        dq, dr = part if dq is None else dq + part, _columns(op, dr, 0, rows)
    first = _square_qr(op, dq, dr, q, _columns(op, r, 0, rows))
    if others is None:
        others = op.Expand(op.const(0.0, x.dtype), [*static_dims(x)[:-1], columns - rows])
    return op.Concat(first, others, axis=-1)


def _square_qr(op: Op, dq: Value | None, dr: Value | None, q: Value, r: Value) -> Value:
    parts = [] if dr is None else [op.MatMul(r, transposed(op, op.Trilu(dr, upper=1)))]
    if dq is not None:
        parts.append(-op.MatMul(transposed(op, dq), q))
    inner = parts[0] if len(parts) == 1 else parts[0] + parts[1]
    mirrored = op.Trilu(inner, upper=0) + transposed(op, _lower(op, inner))
    whole = op.MatMul(q, mirrored)
    return _times_inverse_transposed(op, whole if dq is None else dq + whole, r)


@gradient("Lu", domain=DOMAIN)
def lu(op: Op, dy: Value, x: Value) -> Adjoints:
    """P L⁻ᵀ (tril(Lᵀ dL) + triu(dU Uᵀ)) U⁻ᵀ, the first triangle without its diagonal, for the square part of L and U.

    The rows below it are L₂ = B U⁻¹, the columns beside it U₂ = L⁻¹ B.
    """
    factors, pivots = op.saved(0), op.saved(1)
    rows, columns = static_dims(x)[-2:]
    k = min(rows, columns)
    square = _rows(op, _columns(op, factors, 0, k), 0, k)
    dsquare = _rows(op, _columns(op, dy, 0, k), 0, k)
    rest = None
    if rows > k:
        rest = _times_inverse_transposed(op, _rows(op, dy, k, rows), square)
        dsquare = dsquare - op.Trilu(op.MatMul(transposed(op, _rows(op, factors, k, rows)), rest), upper=1)
    if columns > k:
        rest = op.composite("TriangularSolve", square, _columns(op, dy, k, columns), unit=1, transpose=1)
        dsquare = dsquare - _lower(op, op.MatMul(rest, transposed(op, _columns(op, factors, k, columns))))
    unit = _lower(op, square) + op.const(np.eye(k), x.dtype)
    inner = _lower(op, op.MatMul(transposed(op, unit), _lower(op, dsquare)))
    upper = op.Trilu(square, upper=1)
    inner = inner + op.Trilu(op.MatMul(op.Trilu(dsquare, upper=1), transposed(op, upper)), upper=1)
    part = op.composite("TriangularSolve", square, inner, unit=1, transpose=1)
    whole = _times_inverse_transposed(op, part, square)
    if rest is not None:
        whole = op.Concat(whole, rest, axis=-2 if rows > k else -1)
    order = op.composite("PivotOrder", pivots, rows=rows)
    places = op.Equal(op.const(np.arange(rows)[:, None]), op.Unsqueeze(order, [-2]))
    return op.MatMul(op.Cast(places, to=x.dtype), whole)


@gradient("Pinv", domain=DOMAIN)
def pinv(op: Op, dy: Value, x: Value, atol: Value, rtol: Value, *, hermitian: int = 0) -> Adjoints:
    """−Pᵀ dP Pᵀ + (I − A P) dPᵀ P Pᵀ + Pᵀ P dPᵀ (I − P A), where the rank does not change.

    Of the gradient by a symmetric matrix the symmetric part counts.

    Source: Golub and Pereyra, The differentiation of pseudo-inverses, 1973, equation 4.12.
    """
    p = op.saved(0)
    turned, dturned = transposed(op, p), transposed(op, dy)
    left = op.MatMul(op.MatMul(dturned, p), turned)
    right = op.MatMul(turned, op.MatMul(p, dturned))
    whole = left - op.MatMul(x, op.MatMul(p, left)) + right - op.MatMul(op.MatMul(right, p), x)
    return whole - op.MatMul(op.MatMul(turned, dy), turned), None, None


@gradient("MatrixExp", domain=DOMAIN)
def matrix_exp(op: Op, dy: Value, x: Value) -> Adjoints:
    """The upper right block of exp [[Aᵀ, dY], [0, Aᵀ]].

    Source: Al-Mohy and Higham, Computing the Fréchet derivative of the matrix exponential, 2009, equation 1.5.
    """
    n = static_dims(x)[-1]
    turned = transposed(op, x)
    nothing = op.Expand(op.const(0.0, x.dtype), list(static_dims(x)))
    rows = op.Concat(turned, dy, axis=-1), op.Concat(nothing, turned, axis=-1)
    block = op.composite("MatrixExp", op.Concat(*rows, axis=-2))
    return _rows(op, _columns(op, block, n, 2 * n), 0, n)


gradient("InverseEx", domain=DOMAIN)(inverse_rule)


@gradient("Eig", domain=DOMAIN)
def eig(op: Op, dreal: Value | None, x: Value, imag: Value | None = None) -> Adjoints:
    """V⁻* (diag(dλ) + (V* dV − V* V diag(Re(V* dV))) / E̅) V*, with E_ij = λ_j − λ_i, off the diagonal.

    A complex matrix A + iB stands here as [[A, −B], [B, A]], or as its first columns [[A], [B]].
    Source: Boeddeker et al., On the computation of complex-valued gradients, 2017, equations 4.60 and 4.77.
    """
    real_values, imag_values, real, imaginary = (op.saved(i) for i in range(4))
    n, dtype = static_dims(x)[-1], x.dtype
    eye = op.const(np.eye(n), dtype)
    whole = whole_matrix(op, real, imaginary)  # V
    adjoint = transposed(op, whole)  # V*
    inner = [None if d is None else op.Unsqueeze(d, [-1]) * eye for d in (dreal, op.dys[1])]
    if op.dys[2] is not None or op.dys[3] is not None:
        dvectors = [op.const(0.0, dtype) * real if d is None else d for d in op.dys[2:]]
        turned = op.MatMul(adjoint, op.Concat(*dvectors, axis=-2))
        lengths = op.ReduceSum(_rows(op, turned, 0, n) * eye, [-2], keepdims=1)
        turned = turned - op.MatMul(adjoint, op.Concat(real * lengths, imaginary * lengths, axis=-2))
        a, b = (op.Unsqueeze(v, [-2]) - op.Unsqueeze(v, [-1]) for v in (real_values, imag_values))
        size, off = a * a + b * b + eye, op.const(1.0 - np.eye(n), dtype)
        top, low = _rows(op, turned, 0, n), _rows(op, turned, n, 2 * n)
        parts = (top * a - low * b) * off / size, (low * a + top * b) * off / size  # times E, over its square
        inner = [p if i is None else p + i for p, i in zip(parts, inner, strict=True)]
    zero = op.const(0.0, dtype) * real
    top, low = (zero if part is None else part for part in inner)
    right = op.MatMul(whole_matrix(op, top, low), _columns(op, adjoint, 0, n))
    result = op.composite("Solve", adjoint, right)
    return _rows(op, result, 0, n), None if imag is None else _rows(op, result, n, 2 * n)
