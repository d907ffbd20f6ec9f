"""Determinants and factorisations of complex matrices, given as real and imaginary parts, in standard operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.functions.registry import composite
from ontrain.graph import Builder, static_dims
from ontrain.operators import Value, parts_of_whole, transposed, whole_matrix

__all__: list[str] = []

Types = list[tuple[ir.DataType, ir.Shape]]


def _det_types(inputs: Sequence[Any], **_: object) -> Types:
    return [(inputs[0].dtype, ir.Shape(list(inputs[0].shape)[:-2]))] * 2


@composite("ComplexDet", infer=_det_types)
def complex_det(op: Builder, real: Value, imag: Value) -> tuple[Value, Value]:
    """The determinants of complex matrices, as real and imaginary parts: the products of the eigenvalues."""
    *lead, n, _ = static_dims(real)
    if not n:
        return op.Expand(op.const(1.0, real.dtype), lead), op.Expand(op.const(0.0, real.dtype), lead)
    values = op.composite("Eig", real, imag, outputs=4)[:2]
    a, b = (op.Slice(part, [0], [1], [-1]) for part in values)
    for at in range(1, n):
        c, d = (op.Slice(part, [at], [at + 1], [-1]) for part in values)
        a, b = a * c - b * d, a * d + b * c
    return op.Squeeze(a, [-1]), op.Squeeze(b, [-1])


def _qr_types(inputs: Sequence[Any], *, complete: int) -> Types:
    *lead, rows, columns = list(inputs[0].shape)
    k, dtype = rows if complete else min(rows, columns), inputs[0].dtype
    return [(dtype, ir.Shape([*lead, rows, k]))] * 2 + [(dtype, ir.Shape([*lead, k, columns]))] * 2


@composite("ComplexQr", infer=_qr_types)
def complex_qr(op: Builder, real: Value, imag: Value, *, complete: int = 0) -> tuple[Value, ...]:
    """Q with orthonormal columns and the upper triangle R of a real diagonal, each as real and imaginary parts.

    Q is every second column of the real factorisation's, with the rows and columns of both parts interleaved: that
    one's first 2k columns span what the first k complex ones do, and i times a column is among them.
    """
    *lead, rows, columns = static_dims(real)
    rank, top = len(lead), [*lead, rows, 1, columns, 1]
    left, right = (op.Concat(op.Reshape(a, top), op.Reshape(b, top), axis=rank + 1)
                   for a, b in ((real, imag), (op.Neg(imag), real)))  # fmt: skip
    both = op.Reshape(op.Concat(left, right, axis=rank + 3), [*lead, 2 * rows, 2 * columns])
    q, _ = op.composite("Qr", both, outputs=2, complete=1) if complete else op.composite("Qr", both, outputs=2)
    k = rows if complete else min(rows, columns)
    q = op.Slice(op.Reshape(q, [*lead, rows, 2, k, 2]), [0], [1], [-1])
    parts = [op.Reshape(op.Slice(q, [i], [i + 1], [rank + 1]), [*lead, rows, k]) for i in (0, 1)]
    r = op.MatMul(transposed(op, whole_matrix(op, *parts)), whole_matrix(op, real, imag))
    return *parts, *(op.Trilu(part, upper=1) for part in parts_of_whole(op, r))


def _svd_types(inputs: Sequence[Any], *, full: int) -> Types:
    *lead, rows, columns = list(inputs[0].shape)
    k, dtype = min(rows, columns), inputs[0].dtype
    left, right = (rows, columns) if full else (k, k)
    values = (dtype, ir.Shape([*lead, k]))
    return [values, *[(dtype, ir.Shape([*lead, rows, left]))] * 2, *[(dtype, ir.Shape([*lead, right, columns]))] * 2]


@composite("ComplexSvd", infer=_svd_types)
def complex_svd(op: Builder, real: Value, imag: Value, *, full: int = 0) -> tuple[Value, ...]:
    """s, and U and V* as real and imaginary parts: V has the eigenvectors of A*A, and the columns of A V are s U.

    Source: Golub and Van Loan, Matrix computations, section 8.6.1.
    """
    *lead, rows, columns = static_dims(real)
    if columns > rows:
        values, *sides = op.composite(
            "ComplexSvd", transposed(op, real), op.Neg(transposed(op, imag)), outputs=5, full=full
        )  # fmt: skip
        u_real, u_imag, vh_real, vh_imag = (transposed(op, part) for part in sides)
        return values, vh_real, op.Neg(vh_imag), u_real, op.Neg(u_imag)
    whole = whole_matrix(op, real, imag)
    products = parts_of_whole(op, op.MatMul(transposed(op, whole), whole))
    squares, _, *vectors = op.composite("Eig", *products, outputs=4)
    _, order = op.TopK(squares, op.const(np.array([columns], np.int64)), axis=-1, outputs=2)
    order = op.Expand(op.Unsqueeze(order, [-2]), [*lead, columns, columns])
    v = whole_matrix(op, *(op.GatherElements(part, order, axis=-1) for part in vectors))
    sides = list(parts_of_whole(op, op.MatMul(whole, v)))
    lengths = op.ReduceSum(sides[0] * sides[0] + sides[1] * sides[1], [-2], keepdims=1)
    values = op.Sqrt(lengths)
    sides = [part / values for part in sides]
    if full and rows > columns:
        basis = op.composite("ComplexQr", *sides, outputs=4, complete=1)[:2]
        sides = [op.Concat(part, op.Slice(more, [columns], [rows], [-1]), axis=-1)
                 for part, more in zip(sides, basis, strict=True)]  # fmt: skip
    return op.Squeeze(values, [-2]), *sides, *parts_of_whole(op, transposed(op, v))
