"""torch.linalg: factorisations by elimination and by reflections, pseudo-inverses, functions of matrices."""

from __future__ import annotations

import math

import numpy as np

from ontrain.capture.aten.linalg import fixed_sizes, solved, turned
from ontrain.capture.aten.registry import aten
from ontrain.capture.context import AtenBuilder
from ontrain.graph import static_dims
from ontrain.operators import DOMAIN, Value

__all__: list[str] = []


@aten("linalg_qr")
def qr(op: AtenBuilder, x: Value, mode: str = "reduced") -> tuple[Value, Value]:
    rows, columns = fixed_sizes(op)
    complete = {"complete": 1} if mode == "complete" and rows > columns else {}
    q, r = op.composite("Qr", x, outputs=2, **complete)
    return (op.const(np.zeros(0), x.dtype) if mode == "r" else q), r


@aten("qr")
def qr_of_old(op: AtenBuilder, x: Value, some: bool = True) -> tuple[Value, Value]:
    return qr(op, x, "reduced" if some else "complete")


@aten("geqrf")
def geqrf(op: AtenBuilder, x: Value) -> tuple[Value, ...]:
    fixed_sizes(op)
    return op.composite("Geqrf", x, outputs=2)


@aten("linalg_householder_product", "orgqr")
def householder_product(op: AtenBuilder, vectors: Value, factors: Value) -> Value:
    fixed_sizes(op)
    return op.composite("HouseholderProduct", vectors, factors)


@aten("ormqr")
def ormqr(
    op: AtenBuilder, vectors: Value, factors: Value, other: Value, left: bool = True, transpose: bool = False
) -> Value:
    """C − V (I + D S)⁻¹ D Vᵀ C, with the letters of HouseholderProduct; from the right, and transposed, likewise."""
    if not left:
        return turned(op, _reflected(op, vectors, factors, turned(op, other), not transpose))
    return _reflected(op, vectors, factors, other, transpose)


def _reflected(op: AtenBuilder, vectors: Value, factors: Value, other: Value, transpose: bool) -> Value:
    rows, columns = fixed_sizes(op)
    k = min(columns, static_dims(factors)[-1])
    v = op.Trilu(op.Slice(vectors, [0], [k], [-1]), op.const(np.array(-1, np.int64)), upper=0)
    v = v + op.const(np.eye(rows, k), vectors.dtype)
    above = op.Trilu(op.MatMul(turned(op, v), v), op.const(np.array(1, np.int64)), upper=1)
    factors = op.Unsqueeze(factors, [-1])
    part = op.MatMul(turned(op, v), other)
    if transpose:
        part = factors * solved(op, factors * above, part, upper=True, unit=True, transpose=True)
    else:
        part = solved(op, factors * above, factors * part, upper=True, unit=True)
    return other - op.MatMul(v, part)


def _pivoted(op: AtenBuilder, pivot: bool) -> None:
    if not pivot:
        raise op.refuse("elimination without pivots", "rows are exchanged on a CPU in eager, too", "leave pivot=True")


@aten("linalg_lu_factor_ex")
def lu_factor_ex(op: AtenBuilder, x: Value, pivot: bool = True, check_errors: bool = False) -> tuple[Value, ...]:
    _pivoted(op, pivot)
    fixed_sizes(op)
    return op.composite("Lu", x, outputs=3)


@aten("_lu_with_info")
def lu_with_info(op: AtenBuilder, x: Value, pivot: bool = True, check_errors: bool = True) -> tuple[Value, ...]:
    return lu_factor_ex(op, x, pivot, check_errors)


@aten("linalg_lu_factor")
def lu_factor(op: AtenBuilder, x: Value, *, pivot: bool = True) -> tuple[Value, ...]:
    return lu_factor_ex(op, x, pivot)[:2]


@aten("linalg_lu")
def lu(op: AtenBuilder, x: Value, *, pivot: bool = True) -> tuple[Value, Value, Value]:
    factors, pivots, _ = lu_factor_ex(op, x, pivot)
    return lu_unpack(op, factors, pivots)


@aten("lu_unpack")
def lu_unpack(
    op: AtenBuilder, factors: Value, pivots: Value, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[Value, Value, Value]:
    rows, columns = fixed_sizes(op)
    k, none = min(rows, columns), op.const(np.zeros(0), factors.dtype)
    permutation = lower = upper = none
    if unpack_pivots:
        order = op.Unsqueeze(op.composite("PivotOrder", pivots, rows=rows), [-2])
        permutation = op.cast(op.Equal(op.const(np.arange(rows)[:, None]), order), factors.dtype)
    if unpack_data:
        lower = op.Trilu(op.Slice(factors, [0], [k], [-1]), op.const(np.array(-1, np.int64)), upper=0)
        lower = lower + op.const(np.eye(rows, k), factors.dtype)
        upper = op.Trilu(op.Slice(factors, [0], [k], [-2]), upper=1)
    return permutation, lower, upper


def _solved(op: AtenBuilder, factors: Value, pivots: Value, b: Value, adjoint: bool, size: int) -> Value:
    order = op.Unsqueeze(op.composite("PivotOrder", pivots, rows=size), [-2])
    places = op.cast(op.Equal(op.const(np.arange(size)[:, None]), order), b.dtype)  # A is places · L U
    if adjoint:
        part = solved(op, factors, b, upper=True, transpose=True)
        return op.MatMul(places, solved(op, factors, part, unit=True, transpose=True))
    part = solved(op, factors, op.MatMul(turned(op, places), b), unit=True)
    return solved(op, factors, part, upper=True)


@aten("linalg_lu_solve")
def linalg_lu_solve(
    op: AtenBuilder, factors: Value, pivots: Value, b: Value, *, left: bool = True, adjoint: bool = False
) -> Value:
    size, _ = fixed_sizes(op)
    if left:
        return _solved(op, factors, pivots, b, adjoint, size)
    return turned(op, _solved(op, factors, pivots, turned(op, b), not adjoint, size))


@aten("lu_solve")
def lu_solve(op: AtenBuilder, b: Value, factors: Value, pivots: Value) -> Value:
    return _solved(op, factors, pivots, b, False, fixed_sizes(op, 1)[0])


@aten("_linalg_solve_ex")
def solve_ex(
    op: AtenBuilder, a: Value, b: Value, *, left: bool = True, check_errors: bool = False
) -> tuple[Value, Value, Value, Value]:
    """By elimination, so that a singular matrix is told by `info`."""
    size, _ = fixed_sizes(op)
    factors, pivots, info = op.composite("Lu", a, outputs=3)
    is_vector = len(b.shape) == 1 or (len(b.shape) == len(a.shape) - 1 and list(b.shape) == list(a.shape)[:-1])
    if is_vector:
        result = op.Squeeze(_solved(op, factors, pivots, op.Unsqueeze(b, [-1]), False, size), [-1])
    elif left:
        result = _solved(op, factors, pivots, b, False, size)
    else:
        result = turned(op, _solved(op, factors, pivots, turned(op, b), True, size))
    return result, factors, pivots, info


@aten("linalg_matrix_exp", "matrix_exp")
def matrix_exp(op: AtenBuilder, x: Value) -> Value:
    return op.composite("MatrixExp", x)


@aten("linalg_pinv.atol_rtol_tensor", "linalg_pinv.atol_rtol_float")
def pinv(
    op: AtenBuilder, x: Value,
    *, atol: Value | float | None = None, rtol: Value | float | None = None, hermitian: bool = False,
) -> Value:  # fmt: skip
    """Without bounds, singular values up to the greatest · epsilon · the larger size count as zero."""
    own = float(np.finfo(x.dtype.numpy()).eps) * max(fixed_sizes(op))
    zero = op.cast(0.0, x.dtype)
    atol = zero if atol is None else op.cast(atol, x.dtype)
    if rtol is None:
        rtol = op.Where(op.Greater(atol, zero), zero, op.cast(own, x.dtype))
    operands = [x, op.composite("Detach", atol), op.composite("Detach", op.cast(rtol, x.dtype))]
    return op.call(DOMAIN, "Pinv", operands, {"hermitian": 1} if hermitian else {})


@aten("linalg_pinv", "linalg_pinv.rcond_tensor")
def pinv_by_ratio(op: AtenBuilder, x: Value, rcond: Value | float | None, hermitian: bool = False) -> Value:
    return pinv(op, x, rtol=rcond, hermitian=hermitian)


@aten("pinverse")
def pinverse(op: AtenBuilder, x: Value, rcond: float = 1e-15) -> Value:
    return pinv(op, x, rtol=rcond)


@aten("linalg_tensorinv")
def tensorinv(op: AtenBuilder, x: Value, ind: int = 2) -> Value:
    shape = [size for size in op.input_shape(0) if isinstance(size, int)]
    if len(shape) < len(x.shape):
        raise op.refuse("the inverse of a tensor whose size varies", "it is that of a square matrix", "fix its sizes")
    size = math.prod(shape[:ind])
    matrix = op.Reshape(x, [size, size])
    return op.Reshape(op.call("com.microsoft", "Inverse", [matrix], {}, 1), [*shape[ind:], *shape[:ind]])
