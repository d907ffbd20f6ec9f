"""torch.linalg of complex matrices: a matrix A + iB is the real one [[A, −B], [B, A]] of twice the size."""

from __future__ import annotations

from typing import Any

import numpy as np

from ontrain.capture.aten.complex import Complex, Term, as_complex, matmul, on_complex, real_translation
from ontrain.capture.aten.complex_functions import sgn
from ontrain.capture.aten.linalg import alike, fixed_sizes, no_info, turned
from ontrain.capture.context import AtenBuilder
from ontrain.operators import Value, parts_of_whole, whole_matrix

__all__: list[str] = []


def _whole(op: AtenBuilder, x: Complex) -> Value:
    return whole_matrix(op, x.real, x.imag)


@on_complex("linalg_eig")
def eig(op: AtenBuilder, x: Term) -> tuple[Complex, Complex]:
    operands = (x.real, x.imag) if isinstance(x, Complex) else (x,)
    real, imag, *vectors = op.composite("Eig", *operands, outputs=4)
    return Complex(real, imag), Complex(*vectors)


@on_complex("linalg_eigvals", "_linalg_eigvals")
def eigvals(op: AtenBuilder, x: Term) -> Complex:
    return eig(op, x)[0]


@on_complex("linalg_solve")
def solve(op: AtenBuilder, a: Term, b: Term, *, left: bool = True) -> Complex:
    a, b = as_complex(op, a), as_complex(op, b)
    shapes = list(a.real.shape), list(b.real.shape)
    is_vector = len(shapes[1]) == 1 or shapes[1] == shapes[0][:-1]
    if is_vector:
        b = Complex(op.Unsqueeze(b.real, [-1]), op.Unsqueeze(b.imag, [-1]))
    elif not left:
        a, b = (Complex(turned(op, x.real), turned(op, x.imag)) for x in (a, b))
    both = op.composite("Solve", *alike(op, _whole(op, a), op.Concat(b.real, b.imag, axis=-2)))
    y = Complex(*op.Split(both, axis=-2, num_outputs=2, outputs=2))
    if is_vector:
        return Complex(op.Squeeze(y.real, [-1]), op.Squeeze(y.imag, [-1]))
    return y if left else Complex(turned(op, y.real), turned(op, y.imag))


@on_complex("linalg_inv", "inverse")
def inverse(op: AtenBuilder, x: Complex) -> Complex:
    whole = op.call("com.microsoft", "Inverse", [_whole(op, x)], {}, 1)
    return Complex(*parts_of_whole(op, whole))


@on_complex("linalg_matrix_exp", "matrix_exp")
def matrix_exp(op: AtenBuilder, x: Complex) -> Complex:
    whole = op.composite("MatrixExp", _whole(op, x))
    return Complex(*parts_of_whole(op, whole))


@on_complex("linalg_det", "_linalg_det", "det")
def det(op: AtenBuilder, x: Complex) -> Complex | tuple[Complex, None, None]:
    y = Complex(*op.composite("ComplexDet", x.real, x.imag, outputs=2))
    return (y, None, None) if "_linalg_det" in str(op.node.target) else y


@on_complex("linalg_slogdet", "slogdet", "_linalg_slogdet")
def slogdet(op: AtenBuilder, x: Complex) -> tuple[Any, ...]:
    """The sign is that of the determinant of x over a number that makes its size one."""
    n, _ = fixed_sizes(op)
    log = op.composite("LogAbsDet", _whole(op, x)) * op.cast(0.5, x.real.dtype)
    size = op.Exp(op.composite("Detach", log) * op.cast(-1 / max(n, 1), x.real.dtype))
    infinite = op.IsInf(size)
    size = op.Unsqueeze(op.Where(infinite, op.cast(1.0, x.real.dtype), size), [-2, -1])
    sign = sgn(op, Complex(*op.composite("ComplexDet", x.real * size, x.imag * size, outputs=2)))
    return (sign, log, None, None) if "_linalg" in str(op.node.target) else (sign, log)


@on_complex("linalg_qr")
def qr(op: AtenBuilder, x: Complex, mode: str = "reduced") -> tuple[Complex, Complex]:
    """With more columns than rows, Q comes from the first ones alone, and R of the others is Q* A."""
    rows, columns = fixed_sizes(op)
    first = _columns(op, x, 0, rows) if columns > rows else x
    complete = {"complete": 1} if mode == "complete" and rows > columns else {}
    q_real, q_imag, *parts = op.composite("ComplexQr", first.real, first.imag, outputs=4, **complete)
    q, r = Complex(q_real, q_imag), Complex(*parts)
    if columns > rows:
        rest = _columns(op, x, rows, columns)
        rest = matmul(op, Complex(turned(op, q_real), op.Neg(turned(op, q_imag))), rest)
        r = Complex(op.Concat(r.real, rest.real, axis=-1), op.Concat(r.imag, rest.imag, axis=-1))
    none = op.const(np.zeros(0), x.real.dtype)
    return (Complex(none, none) if mode == "r" else q), r


@on_complex("qr")
def qr_of_old(op: AtenBuilder, x: Complex, some: bool = True) -> tuple[Complex, Complex]:
    return qr(op, x, "reduced" if some else "complete")


def _columns(op: AtenBuilder, x: Complex, start: int, end: int) -> Complex:
    real, imag = (op.Slice(part, [start], [end], [-1]) for part in (x.real, x.imag))
    return Complex(real, imag)


@on_complex("linalg_svd")
def svd(
    op: AtenBuilder, x: Complex, full_matrices: bool = True, compute_uv: bool = True, *, driver: str | None = None
) -> tuple[Complex, Value, Complex]:
    rows, columns = fixed_sizes(op)
    full = {"full": 1} if full_matrices and compute_uv and rows != columns else {}
    s, *parts = op.composite("ComplexSvd", x.real, x.imag, outputs=5, **full)
    return Complex(*parts[:2]), s, Complex(*parts[2:])


@on_complex("_linalg_svd")
def thin_svd(
    op: AtenBuilder, x: Complex, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> tuple[Complex, Value, Complex]:
    return svd(op, x, full_matrices, compute_uv)


@on_complex("linalg_svdvals")
def svdvals(op: AtenBuilder, x: Complex, *, driver: str | None = None) -> Value:
    return svd(op, x, False)[1]


def _interleaved(op: AtenBuilder, x: Complex) -> Value:
    """The whole matrix with a row and a column of each part in turn: that of a triangle is nearly one."""
    parts = [op.Concat(op.Unsqueeze(a, [-1]), op.Unsqueeze(b, [-1]), axis=-1)
             for a, b in ((x.real, op.Neg(x.imag)), (x.imag, x.real))]  # fmt: skip
    n, _ = fixed_sizes(op)
    lead = [0] * (len(x.real.shape) - 2)  # as they are
    both = op.Concat(*(op.Reshape(part, [*lead, n, 1, 2 * n]) for part in parts), axis=-2)
    return op.Reshape(both, [*lead, 2 * n, 2 * n])


@on_complex("linalg_cholesky", "cholesky")
def cholesky(op: AtenBuilder, x: Complex, upper: bool = False) -> Complex:
    """The factor of the interleaved matrix is the interleaved factor, because the diagonal of that is real."""
    n, _ = fixed_sizes(op)
    whole = op.composite("Cholesky", _interleaved(op, x))
    columns = op.Slice(whole, [0], [2 * n], [-1], [2])
    real, imag = (op.Slice(columns, [start], [2 * n], [-2], [2]) for start in (0, 1))
    return Complex(turned(op, real), op.Neg(turned(op, imag))) if upper else Complex(real, imag)


@on_complex("linalg_cholesky_ex")
def cholesky_ex(
    op: AtenBuilder, x: Complex, *, upper: bool = False, check_errors: bool = False
) -> tuple[Complex, Value]:
    return cholesky(op, x, upper), no_info(op, x.real)


@on_complex("linalg_eigh", "_linalg_eigh")
def eigh(op: AtenBuilder, x: Complex, UPLO: str = "L", compute_v: bool = True) -> tuple[Value, Complex]:
    """Of the triangle that torch reads, with the other one as its adjoint."""
    n, _ = fixed_sizes(op)
    values, _, *vectors = op.composite("Eig", *_hermitian(op, x, UPLO.upper() == "U"), outputs=4)
    _, order = op.TopK(values, op.const(np.array([n], np.int64)), axis=-1, largest=0, outputs=2)
    places = op.Expand(op.Unsqueeze(order, [-2]), op.Shape(x.real))
    ascending = op.GatherElements(values, order, axis=-1)
    return ascending, Complex(*(op.GatherElements(part, places, axis=-1) for part in vectors))


def _hermitian(op: AtenBuilder, x: Complex, upper: bool) -> tuple[Value, Value]:
    edge = op.const(np.array(1 if upper else -1, np.int64))
    real, imag = (op.Trilu(part, edge, upper=int(upper)) for part in (x.real, x.imag))
    diagonal = x.real * op.const(np.eye(fixed_sizes(op)[0]), x.real.dtype)
    return real + diagonal + turned(op, real), imag - turned(op, imag)


@on_complex("linalg_eigvalsh")
def eigvalsh(op: AtenBuilder, x: Complex, UPLO: str = "L") -> Value:
    return eigh(op, x, UPLO)[0]


@on_complex("linalg_solve_triangular")
def solve_triangular(
    op: AtenBuilder, a: Term, b: Term, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Complex:
    """By a system of equations with the triangle's numbers alone."""
    a = as_complex(op, a)
    edge = op.const(np.array((1 if upper else -1) if unitriangular else 0, np.int64))
    real, imag = (op.Trilu(part, edge, upper=int(upper)) for part in (a.real, a.imag))
    if unitriangular:
        real = real + op.const(np.eye(fixed_sizes(op)[0]), real.dtype)
    return solve(op, Complex(real, imag), b, left=left)


@on_complex("linalg_pinv")
def pinv(op: AtenBuilder, x: Complex, *bounds: Any, **named: Any) -> Complex:
    """The pseudo-inverse of the whole matrix, which has each singular value twice."""
    if not bounds and named.get("rtol") is None and named.get("atol") is None:
        named["rtol"] = float(np.finfo(x.real.dtype.numpy()).eps) * max(fixed_sizes(op))
    whole = real_translation(op)(op, _whole(op, x), *bounds, **named)
    return Complex(*parts_of_whole(op, whole))
