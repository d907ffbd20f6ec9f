"""Factorisations and solutions of linear systems, of matrices in the last two axes."""

from __future__ import annotations

import numpy as np

from ontrain.operators.contributed import MICROSOFT
from ontrain.operators.emit import Value
from ontrain.operators.gradients import Adjoints, Op, gradient
from ontrain.operators.matmul import transposed
from ontrain.operators.record import DOMAIN, WHEREVER, define
from ontrain.operators.shapes import static_dims

__all__ = ["inverse_rule"]

define("Cholesky", domain=DOMAIN)
define("CholeskyEx", domain=DOMAIN)
define("Eigh", domain=DOMAIN)
define("LinearSumAssignment", domain=DOMAIN, asks_device=True, zero_gradient=WHEREVER)
define("LogAbsDet", domain=DOMAIN)
define("Solve", domain=DOMAIN)
define("Svd", domain=DOMAIN)
define("TriangularSolve", domain=DOMAIN)


def _eye(op: Op, x: Value) -> Value:
    return op.const(np.eye(static_dims(x)[-1]), x.dtype)


def _diagonal(op: Op, values: Value) -> Value:
    """Matrices with these values on the diagonal."""
    return op.Unsqueeze(values, [-1]) * op.const(np.eye(static_dims(values)[-1]), values.dtype)


@gradient("Cholesky", "CholeskyEx", domain=DOMAIN)
def cholesky(op: Op, dy: Value, x: Value) -> Adjoints:
    """L⁻ᵀ Φ(Lᵀ dL) L⁻¹, made symmetric; Φ takes the lower triangle and half of the diagonal.

    Source: Murray, Differentiation of the Cholesky decomposition, 2016, equation 10.
    """
    factor = op.saved(0)
    inner = op.Trilu(op.MatMul(transposed(op, factor), dy), upper=0)
    inner = (inner + transposed(op, op.Trilu(inner, op.const(np.array(-1, np.int64)), upper=0))) * 0.5
    left = op.composite("TriangularSolve", factor, inner, transpose=1)
    return transposed(op, op.composite("TriangularSolve", factor, transposed(op, left), transpose=1))


@gradient("TriangularSolve", domain=DOMAIN)
def triangular_solve(
    op: Op, dy: Value, a: Value, b: Value, *, upper: int = 0, unit: int = 0, transpose: int = 0
) -> Adjoints:
    """For op(A) X = B: dB = op(A)⁻ᵀ dX, and d op(A) = −dB Xᵀ, of which the triangle that is read counts."""
    right = op.composite("TriangularSolve", a, dy, upper=upper, unit=unit, transpose=1 - transpose)
    x = op.saved(0)
    left = op.MatMul(x, transposed(op, right)) if transpose else op.MatMul(right, transposed(op, x))
    offset = (1 if upper else -1) if unit else 0
    return -op.Trilu(left, op.const(np.array(offset, np.int64)), upper=upper), right


@gradient("Solve", domain=DOMAIN)
def solve(op: Op, dy: Value, a: Value, b: Value) -> Adjoints:
    """For A X = B: dB = A⁻ᵀ dX, dA = −dB Xᵀ."""
    right = op.composite("Solve", transposed(op, a), dy)
    return -op.MatMul(right, transposed(op, op.saved(0))), right


@gradient("Inverse", domain=MICROSOFT)
def inverse_rule(op: Op, dy: Value, x: Value) -> Adjoints:
    """−A⁻ᵀ dY A⁻ᵀ."""
    turned = transposed(op, op.saved(0))
    return -op.MatMul(op.MatMul(turned, dy), turned)


@gradient("LogAbsDet", domain=DOMAIN)
def log_abs_det(op: Op, dy: Value, x: Value) -> Adjoints:
    """dy · A⁻ᵀ."""
    unit = op.Expand(_eye(op, x), list(static_dims(x)))
    return op.Unsqueeze(dy, [-2, -1]) * op.composite("Solve", transposed(op, x), unit)


@gradient("Eigh", domain=DOMAIN)
def eigh(op: Op, dvalues: Value | None, x: Value) -> Adjoints:
    """V (diag(dλ) + (Vᵀ dV) / E) Vᵀ, made symmetric, with E_ij = λ_j − λ_i.

    Source: Giles, Collected matrix derivative results, 2008, section 3.1.
    """
    values, vectors, dvectors = op.saved(0), op.saved(1), op.dys[1]
    inner = None if dvalues is None else _diagonal(op, dvalues)
    if dvectors is not None:
        apart = op.Unsqueeze(values, [-2]) - op.Unsqueeze(values, [-1]) + _eye(op, x)
        off = op.const(1.0 - np.eye(static_dims(x)[-1]), x.dtype)
        turning = op.MatMul(transposed(op, vectors), dvectors) * off / apart
        inner = turning if inner is None else inner + turning
    whole = op.MatMul(op.MatMul(vectors, inner), transposed(op, vectors))
    return (whole + transposed(op, whole)) * 0.5


@gradient("Svd", domain=DOMAIN)
def svd(op: Op, ds: Value | None, x: Value, *, full: int = 0) -> Adjoints:
    """The gradient of the thin factorisation U diag(s) Vᵀ, given as s, U and Vᵀ.

    What a full factorisation has beyond the thin one is not determined by x, and nothing flows back through it.
    Source: Townsend, Differentiating the singular value decomposition, 2016.
    """
    s, u, vh = (op.saved(i) for i in range(3))
    _, du, dv = op.dys
    if full:
        k = min(static_dims(x)[-2:])
        u, vh = op.Slice(u, [0], [k], [-1]), op.Slice(vh, [0], [k], [-2])
        du = None if du is None else op.Slice(du, [0], [k], [-1])
        dv = None if dv is None else op.Slice(dv, [0], [k], [-2])
    v = transposed(op, vh)
    rows, columns = static_dims(x)[-2:]
    inner = None if ds is None else _diagonal(op, ds)
    squares = s * s
    apart = op.Unsqueeze(squares, [-2]) - op.Unsqueeze(squares, [-1]) + op.const(np.eye(min(rows, columns)), x.dtype)
    off = op.const(1.0 - np.eye(min(rows, columns)), x.dtype)
    wide, tall = op.Unsqueeze(s, [-1]), op.Unsqueeze(s, [-2])

    def skew(basis: Value, adjoint: Value) -> Value:
        product = op.MatMul(transposed(op, basis), adjoint)
        return (product - transposed(op, product)) * off / apart

    outside = []
    if du is not None:
        part = skew(u, du) * tall
        inner = part if inner is None else inner + part
        if rows > columns:
            rest = du / tall
            outside.append(op.MatMul(rest - op.MatMul(u, op.MatMul(transposed(op, u), rest)), vh))
    if dv is not None:
        dv = transposed(op, dv)
        part = wide * skew(v, dv)
        inner = part if inner is None else inner + part
        if columns > rows:
            rest = transposed(op, dv / tall)
            outside.append(op.MatMul(u, rest - op.MatMul(op.MatMul(rest, v), vh)))
    whole = op.MatMul(op.MatMul(u, inner), vh)
    for part in outside:
        whole = whole + part
    return whole
