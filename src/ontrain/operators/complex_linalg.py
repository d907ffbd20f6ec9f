"""Determinants and factorisations of complex matrices, which come as real and imaginary parts.

A complex matrix A + iB is the real one [[A, −B], [B, A]] of twice the size: products, transposes and inverses of such
matrices are the products, adjoints and inverses of the complex ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ontrain.operators.emit import Emitter, Value
from ontrain.operators.gradients import Adjoints, Op, gradient
from ontrain.operators.matmul import transposed
from ontrain.operators.record import DOMAIN, define
from ontrain.operators.shapes import static_dims

__all__ = ["parts_of_whole", "whole_matrix"]

define("ComplexDet", domain=DOMAIN)
define("ComplexQr", domain=DOMAIN)
define("ComplexSvd", domain=DOMAIN)


def whole_matrix(op: Emitter, real: Value, imag: Value) -> Value:
    """Return the real matrix of twice the size that multiplies as real + i imag does."""
    return op.Concat(op.Concat(real, op.Neg(imag), axis=-1), op.Concat(imag, real, axis=-1), axis=-2)


def parts_of_whole(op: Emitter, x: Value) -> tuple[Value, Value]:
    """Return the real and the imaginary part of what `whole_matrix` made."""
    first, _ = op.Split(x, axis=-1, num_outputs=2, outputs=2)
    real, imag = op.Split(first, axis=-2, num_outputs=2, outputs=2)
    return real, imag


@gradient("ComplexDet", domain=DOMAIN)
def complex_det(op: Op, dreal: Value | None, real: Value, imag: Value) -> Adjoints:
    """dy times the conjugates of the cofactors, which are right for a singular matrix too."""
    *lead, n, _ = shape = static_dims(real)
    rank = len(shape)
    zero = op.const(np.zeros([1] * rank), real.dtype)
    slopes = [zero if d is None else op.Reshape(d, [*lead, 1, 1]) for d in (dreal, op.dys[1])]
    if n == 1:
        return tuple(op.Expand(slope, shape) for slope in slopes)
    others = np.array([[j for j in range(n) if j != i] for i in range(n)])
    perm = [*range(rank - 2), rank - 2, rank, rank - 1, rank + 1]  # [row out, column out, rows, columns]
    minors = [op.Transpose(op.Gather(op.Gather(x, others, axis=rank - 2), others, axis=rank), perm=perm)
              for x in (real, imag)]  # fmt: skip
    a, b = op.composite("ComplexDet", *minors, outputs=2)
    places = np.arange(n)
    signs = op.const((-1.0) ** (places[:, None] + places), real.dtype)
    x, y = slopes
    return (x * a + y * b) * signs, (y * a - x * b) * signs


@gradient("ComplexQr", domain=DOMAIN)
def complex_qr(op: Op, dq: Value | None, real: Value, imag: Value, *, complete: int = 0) -> Adjoints:
    """(dQ + Q S) R⁻*, where S is Hermitian with the upper triangle of dR R* − Q* dQ, for a real diagonal of R.

    Source: Roberts and Roberts, QR and LQ decomposition matrix backpropagation algorithms, 2020.
    """
    rows, columns = static_dims(real)[-2:]
    if complete and rows > columns:
        raise op.refused("the further columns of a complete factorisation are not determined", 'set mode="reduced"')
    q, r = (whole_matrix(op, op.saved(at), op.saved(at + 1)) for at in (0, 2))
    dwhole = _whole_adjoint(op, [dq, op.dys[1]], op.saved(0))
    dr = _whole_adjoint(op, op.dys[2:], op.saved(2), upper=True)
    terms = [] if dr is None else [op.MatMul(dr, transposed(op, r))]
    if dwhole is not None:
        terms.append(-op.MatMul(transposed(op, q), dwhole))
    top, low = parts_of_whole(op, terms[0] if len(terms) == 1 else terms[0] + terms[1])
    after = op.const(np.array(1, np.int64))
    strict = op.Trilu(top, after, upper=1), op.Trilu(low, after, upper=1)
    mirrored = whole_matrix(op, op.Trilu(top, upper=1) + transposed(op, strict[0]),
                            strict[1] - transposed(op, strict[1]))  # fmt: skip
    right = op.MatMul(q, mirrored)
    right = right if dwhole is None else dwhole + right
    return parts_of_whole(op, transposed(op, op.composite("Solve", r, transposed(op, right))))


def _whole_adjoint(op: Op, dparts: Sequence[Value | None], like: Value, *, upper: bool = False) -> Value | None:
    """The adjoint of a complex matrix, of whose parts one or both may be missing."""
    if all(part is None for part in dparts):
        return None
    real, imag = (op.const(0.0, like.dtype) * like if part is None else part for part in dparts)
    if upper:
        real, imag = op.Trilu(real, upper=1), op.Trilu(imag, upper=1)
    return whole_matrix(op, real, imag)


@gradient("ComplexSvd", domain=DOMAIN)
def complex_svd(op: Op, ds: Value | None, real: Value, imag: Value, *, full: int = 0) -> Adjoints:
    """The gradient of the thin factorisation U diag(s) V*, given as s and the parts of U and of V*.

    What a full factorisation has beyond the thin one is not determined by x, and nothing flows back through it.
    Source: Wan and Zhang, Automatic differentiation for complex valued SVD, 2019.
    """
    *_, rows, columns = static_dims(real)
    k, dtype = min(rows, columns), real.dtype
    s, parts = op.saved(0), [op.saved(at) for at in range(1, 5)]
    dparts: list[Value | None] = list(op.dys[1:])
    if full:
        axes = (-1, -1, -2, -2)
        parts = [op.Slice(part, [0], [k], [axis]) for part, axis in zip(parts, axes, strict=True)]
        dparts = [None if d is None else op.Slice(d, [0], [k], [axis]) for d, axis in zip(dparts, axes, strict=True)]
    u, vh = whole_matrix(op, *parts[:2]), whole_matrix(op, *parts[2:])
    du = _whole_adjoint(op, dparts[:2], parts[0])
    dvh = _whole_adjoint(op, dparts[2:], parts[2])
    values = op.Concat(s, s, axis=-1)
    wide, tall = op.Unsqueeze(values, [-1]), op.Unsqueeze(values, [-2])
    same = op.const(np.tile(np.eye(k), (2, 2)), dtype)  # of one row and one column, in all four blocks
    apart = tall * tall - wide * wide + same
    eye, off = op.const(np.eye(2 * k), dtype), op.const(1.0 - np.tile(np.eye(k), (2, 2)), dtype)

    def skew(basis: Value, adjoint: Value) -> Value:
        product = op.MatMul(transposed(op, basis), adjoint)
        return product - transposed(op, product)

    terms = [] if ds is None else [op.Unsqueeze(op.Concat(ds, ds, axis=-1), [-1]) * eye]
    outside = []
    if du is not None:
        turning = skew(u, du)
        terms.append(turning * off / apart * tall)
        if dvh is not None:  # the phase that a column of U and one of V have in common
            terms.append(turning * same / (tall * 2.0))
        if rows > columns:
            rest = du / tall
            outside.append(op.MatMul(rest - op.MatMul(u, op.MatMul(transposed(op, u), rest)), vh))
    if dvh is not None:
        terms.append(wide * skew(transposed(op, vh), transposed(op, dvh)) * off / apart)
        if columns > rows:
            rest = dvh / wide
            outside.append(op.MatMul(u, rest - op.MatMul(op.MatMul(rest, transposed(op, vh)), vh)))
    inner = terms[0]
    for term in terms[1:]:
        inner = inner + term
    whole = op.MatMul(op.MatMul(u, inner), vh)
    for part in outside:
        whole = whole + part
    return parts_of_whole(op, whole)
