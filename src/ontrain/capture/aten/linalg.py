"""torch.linalg: systems of equations and factorisations of matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from ontrain.capture.aten.registry import aten
from ontrain.capture.context import AtenBuilder
from ontrain.operators import DOMAIN, Value

__all__ = ["alike", "fixed_sizes", "no_info", "solved", "turned"]

_MICROSOFT = "com.microsoft"


def turned(op: AtenBuilder, x: Value) -> Value:
    """The transposed matrices."""
    rank = len(x.shape)
    return op.Transpose(x, perm=[*range(rank - 2), rank - 1, rank - 2])


def fixed_sizes(op: AtenBuilder, index: int = 0) -> tuple[int, int]:
    """Return the rows and columns of the current node's matrix; sizes that vary are refused."""
    rows, columns = op.input_shape(index)[-2:]
    if not isinstance(rows, int) or not isinstance(columns, int):
        raise op.refuse(
            "a factorisation of a matrix whose size varies", "its results have the smaller of two sizes",
            "fix the sizes of the matrix",
        )  # fmt: skip
    return rows, columns


def alike(op: AtenBuilder, a: Value, b: Value) -> tuple[Any, Any]:
    """Both with the leading axes that they broadcast to."""
    if list(a.shape)[:-2] == list(b.shape)[:-2]:
        return a, b
    return a * _ones(op, b), b * _ones(op, a)


def _ones(op: AtenBuilder, like: Value) -> Value:
    """Ones […, 1, 1] with the leading axes of other matrices, whose values are not read: they may be infinite."""
    lead = op.Shape(like, start=0, end=len(like.shape) - 2)
    return op.Expand(op.const(1.0, like.dtype), op.Concat(lead, op.const(np.array([1, 1], np.int64)), axis=0))


def no_info(op: AtenBuilder, x: Value) -> Value:
    """Return what torch calls `info` where it checks: zero, for a matrix that cannot be factorised is an error."""
    return op.Expand(op.const(np.array(0, np.int32)), op.Shape(x, start=0, end=len(x.shape) - 2))


@aten("linalg_cholesky", "cholesky")
def cholesky(op: AtenBuilder, x: Value, upper: bool = False) -> Value:
    factor = op.composite("Cholesky", x)
    return turned(op, factor) if upper else factor


@aten("linalg_cholesky_ex")
def cholesky_ex(op: AtenBuilder, x: Value, *, upper: bool = False, check_errors: bool = False) -> tuple[Value, Value]:
    if check_errors:
        return cholesky(op, x, upper), no_info(op, x)
    factor, info = op.composite("CholeskyEx", x, outputs=2)
    return (turned(op, factor) if upper else factor), info


def solved(op: AtenBuilder, a: Value, b: Value, **flags: bool) -> Value:
    """X with A X = B for a triangle A; the flags are TriangularSolve's attributes."""
    return op.call(DOMAIN, "TriangularSolve", alike(op, a, b), {name: int(flag) for name, flag in flags.items()})


@aten("linalg_solve_triangular")
def solve_triangular(
    op: AtenBuilder, a: Value, b: Value, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Value:
    if left:
        return solved(op, a, b, upper=upper, unit=unitriangular)
    return turned(op, solved(op, a, turned(op, b), upper=upper, unit=unitriangular, transpose=True))


@aten("triangular_solve")
def triangular_solve(
    op: AtenBuilder, b: Value, a: Value, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Value, Value]:
    return solved(op, a, b, upper=upper, unit=unitriangular, transpose=transpose), a


@aten("cholesky_solve")
def cholesky_solve(op: AtenBuilder, b: Value, factor: Value, upper: bool = False) -> Value:
    half = solved(op, factor, b, upper=upper, transpose=upper)
    return solved(op, factor, half, upper=upper, transpose=not upper)


@aten("cholesky_inverse")
def cholesky_inverse(op: AtenBuilder, factor: Value, upper: bool = False) -> Value:
    n = op.input_shape(0)[-1]
    if not isinstance(n, int):
        raise op.refuse("the inverse of a matrix whose size varies", "the unit matrix is constant", "fix its size")
    return cholesky_solve(op, op.const(np.eye(n), factor.dtype), factor, upper)


@aten("linalg_solve")
def solve(op: AtenBuilder, a: Value, b: Value, *, left: bool = True) -> Value:
    is_vector = len(b.shape) == 1 or (len(b.shape) == len(a.shape) - 1 and list(b.shape) == list(a.shape)[:-1])
    if is_vector:
        return op.Squeeze(op.composite("Solve", *alike(op, a, op.Unsqueeze(b, [-1]))), [-1])
    if left:
        return op.composite("Solve", *alike(op, a, b))
    return turned(op, op.composite("Solve", *alike(op, turned(op, a), turned(op, b))))


@aten("linalg_inv", "inverse")
def inverse(op: AtenBuilder, x: Value) -> Value:
    return op.call(_MICROSOFT, "Inverse", [x], {}, 1)


@aten("linalg_inv_ex")
def inv_ex(op: AtenBuilder, x: Value, *, check_errors: bool = False) -> tuple[Value, ...]:
    return (inverse(op, x), no_info(op, x)) if check_errors else op.composite("InverseEx", x, outputs=2)


@aten("linalg_slogdet", "slogdet")
def slogdet(op: AtenBuilder, x: Value) -> tuple[Value, Value]:
    return op.Sign(op.Det(x)), op.composite("LogAbsDet", x)


@aten("_linalg_slogdet")
def slogdet_with_factors(op: AtenBuilder, x: Value) -> tuple[Value, Value, None, None]:
    return *slogdet(op, x), None, None


@aten("linalg_eigh", "_linalg_eigh")
def eigh(op: AtenBuilder, x: Value, UPLO: str = "L", compute_v: bool = True) -> tuple[Value, ...]:
    return tuple(op.composite("Eigh", turned(op, x) if UPLO.upper() == "U" else x, outputs=2))


@aten("linalg_eigvalsh")
def eigvalsh(op: AtenBuilder, x: Value, UPLO: str = "L") -> Value:
    return eigh(op, x, UPLO)[0]


@aten("linalg_svd")
def svd(
    op: AtenBuilder, x: Value, full_matrices: bool = True, compute_uv: bool = True, *, driver: str | None = None
) -> tuple[Value, Value, Value]:
    rows, columns = fixed_sizes(op)
    full = int(full_matrices and compute_uv and rows != columns)
    s, u, vh = op.composite("Svd", x, outputs=3, full=full) if full else op.composite("Svd", x, outputs=3)
    return u, s, vh


@aten("_linalg_svd")
def thin_svd(
    op: AtenBuilder, x: Value, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> tuple[Value, Value, Value]:
    return svd(op, x, full_matrices, compute_uv)


@aten("linalg_svdvals")
def svdvals(op: AtenBuilder, x: Value, *, driver: str | None = None) -> Value:
    return svd(op, x, False)[1]


@aten("ontrain::assign")
def linear_sum_assignment(op: AtenBuilder, cost: Value, maximize: bool) -> tuple[Value, Value]:
    rows, columns = op.composite("LinearSumAssignment", cost, outputs=2, maximize=int(maximize))
    return rows, columns
