"""Fourier transforms as products with matrices of cosines and sines: exact, and differentiable as any product.

A transform of length n costs n² and not n·log n: right for frames of a spectrogram, not for a million samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ontrain.capture.aten.complex import Complex, on_complex
from ontrain.capture.context import AtenBuilder
from ontrain.operators import Value

__all__: list[str] = []

_LONGEST = 8192


def _waves(
    op: AtenBuilder, rows: int, columns: int, period: int, scale: float | np.ndarray[Any, Any] = 1.0
) -> tuple[Any, Any]:
    """cos and sin of 2π·row·column / period, [rows, columns], times `scale`."""
    if period > _LONGEST:
        raise op.refuse(
            f"a Fourier transform of length {period}", f"it is a matrix product, and above {_LONGEST} too large a one",
            "transform shorter frames, or do it outside of forward",
        )  # fmt: skip
    # The product modulo the period keeps the angle small, and its cosine exact.
    turns = np.outer(np.arange(rows), np.arange(columns)) % period
    angle = 2 * np.pi * turns / period
    dtype = op.dtype.numpy()
    sin = np.where(2 * turns % period == 0, 0.0, np.sin(angle))
    return op.const((np.cos(angle) * scale).astype(dtype)), op.const((sin * scale).astype(dtype))


def _along(op: AtenBuilder, x: Value, dim: int, matrix: Value) -> Value:
    """x times a matrix over one axis."""
    rank = len(op.input_shape(0))
    dim %= rank
    if dim == rank - 1:
        return op.MatMul(x, matrix)
    perm = [*(d for d in range(rank) if d != dim), dim]
    back = [perm.index(d) for d in range(rank)]
    return op.Transpose(op.MatMul(op.Transpose(x, perm=perm), matrix), perm=back)


def _length(op: AtenBuilder, dim: int) -> int:
    size = op.input_shape(0)[dim]
    if not isinstance(size, int):
        raise op.refuse("a Fourier transform over a dimension that varies", "its matrix is constant", "fix the size")
    return size


def _scale(normalization: int, count: int) -> float:
    return (1.0, count**-0.5, 1.0 / count)[normalization]


def _turned(op: AtenBuilder, x: Complex, dim: int, forward: bool) -> Complex:
    n = _length(op, dim)
    cos, sin = _waves(op, n, n, n)
    real = (_along(op, x.real, dim, cos), _along(op, x.imag, dim, sin))
    imag = (_along(op, x.imag, dim, cos), _along(op, x.real, dim, sin))
    return Complex(real[0] + real[1], imag[0] - imag[1]) if forward else Complex(real[0] - real[1], imag[0] + imag[1])


def _scaled(op: AtenBuilder, x: Value | Complex, factor: float) -> Complex | Value:
    if factor == 1:
        return x
    by = op.cast(factor, op.dtype)
    return Complex(x.real * by, x.imag * by) if isinstance(x, Complex) else x * by


@on_complex("_fft_c2c")
def c2c(op: AtenBuilder, x: Complex, dim: Sequence[int], normalization: int, forward: bool) -> Complex | Value:
    count = int(np.prod([_length(op, d) for d in dim]))
    for d in dim:
        x = _turned(op, x, d, forward)
    return _scaled(op, x, _scale(normalization, count))


@on_complex("_fft_r2c")
def r2c(op: AtenBuilder, x: Value, dim: Sequence[int], normalization: int, onesided: bool) -> Complex | Value:
    last = dim[-1]
    n = _length(op, last)
    count = int(np.prod([_length(op, d) for d in dim]))
    cos, sin = _waves(op, n, n // 2 + 1 if onesided else n, n)
    y = Complex(_along(op, x, last, cos), op.Neg(_along(op, x, last, sin)))
    for d in dim[:-1]:
        y = _turned(op, y, d, True)
    return _scaled(op, y, _scale(normalization, count))


@on_complex("_fft_c2r")
def c2r(op: AtenBuilder, x: Complex, dim: Sequence[int], normalization: int, last_dim_size: int) -> Complex | Value:
    last, n = dim[-1], int(last_dim_size)
    count = int(np.prod([*(_length(op, d) for d in dim[:-1]), n]))
    for d in dim[:-1]:
        x = _turned(op, x, d, False)
    frequencies = n // 2 + 1
    # All frequencies but the first, and the middle one of an even length, stand for their mirror image too.
    weight = np.full((frequencies, 1), 2.0)
    weight[0] = 1.0
    if n % 2 == 0:
        weight[-1] = 1.0
    cos, sin = _waves(op, frequencies, n, n, weight)
    y = _along(op, x.real, last, cos) - _along(op, x.imag, last, sin)
    return _scaled(op, y, _scale(normalization, count))
