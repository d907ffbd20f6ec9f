"""Fourier transforms: short ones as products with matrices of cosines and sines, others as the operator DFT."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard

import numpy as np

from ontrain.capture.aten.complex import Complex, on_complex, pair, parts
from ontrain.capture.context import AtenBuilder, Dim
from ontrain.operators import Value

__all__: list[str] = []

_SHORT = 96
"""Up to this length a product is as quick as a fast transform, and its results lie where they are wanted."""


def _is_short(sizes: Sequence[Dim]) -> TypeGuard[Sequence[int]]:
    return all(isinstance(size, int) and size <= _SHORT for size in sizes)


def _sizes(op: AtenBuilder, dim: Sequence[int]) -> list[Dim]:
    return [op.input_shape(0)[d] for d in dim]


def _transformed(op: AtenBuilder, x: Value | Complex, dim: int, length: Dim | None = None, **how: int) -> Any:
    """Emit a DFT of a real or complex tensor along one axis; its result has an axis of one or two more."""
    joined = pair(op, x) if isinstance(x, Complex) else op.Unsqueeze(x, [-1])
    axis = op.const(np.array(dim % len(op.input_shape(0))))
    return op.DFT(joined, None if length is None else op.scalar(length), axis, **how)


def _apart(op: AtenBuilder, pairs: Any, shape: Sequence[Dim]) -> Complex:
    """The two parts of what a DFT gives, of a shape that is known."""
    real, imag = (op.typed(op.Squeeze(op.Slice(pairs, [i], [i + 1], [-1]), [-1]), shape) for i in (0, 1))
    return Complex(real, imag, op.typed(pairs, [*shape, 2]))


def _to_the_power(op: AtenBuilder, x: Value | Complex, sizes: Sequence[Dim], exponent: float) -> Value | Complex:
    """x times a power of how many elements a transform has."""
    if exponent == 0:
        return x
    count = op.count(sizes)
    if isinstance(count, int):
        factor = op.cast(1 / count if exponent == -1 else count**exponent, op.dtype)
    else:
        factor = op.Pow(op.cast(count, op.dtype), op.cast(exponent, op.dtype))
    if not isinstance(x, Complex):
        return x * factor
    return Complex(x.real * factor, x.imag * factor) if x.joined is None else parts(op, x.joined * factor)


_EXPONENTS = (0.0, -0.5, -1.0)
"""Of that number, by torch's number of a normalisation. DFT divides by it where it is inverse."""


def _waves(
    op: AtenBuilder, rows: int, columns: int, period: int, scale: float | np.ndarray[Any, Any] = 1.0
) -> tuple[Any, Any]:
    """cos and sin of 2π·row·column / period, [rows, columns], times `scale`."""
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


def _turned(op: AtenBuilder, x: Complex, dim: int, n: int, forward: bool) -> Complex:
    cos, sin = _waves(op, n, n, n)
    real = (_along(op, x.real, dim, cos), _along(op, x.imag, dim, sin))
    imag = (_along(op, x.imag, dim, cos), _along(op, x.real, dim, sin))
    return Complex(real[0] + real[1], imag[0] - imag[1]) if forward else Complex(real[0] - real[1], imag[0] + imag[1])


@on_complex("_fft_c2c")
def c2c(op: AtenBuilder, x: Complex, dim: Sequence[int], normalization: int, forward: bool) -> Complex | Value:
    sizes = _sizes(op, dim)
    if not _is_short(sizes):
        for d in dim:
            x = _apart(op, _transformed(op, x, d, inverse=int(not forward)), op.input_shape(0))
        return _to_the_power(op, x, sizes, _EXPONENTS[normalization] + (not forward))
    for d, n in zip(dim, sizes, strict=True):
        x = _turned(op, x, d, n, forward)
    return _to_the_power(op, x, sizes, _EXPONENTS[normalization])


@on_complex("_fft_r2c")
def r2c(op: AtenBuilder, x: Value, dim: Sequence[int], normalization: int, onesided: bool) -> Complex | Value:
    last, sizes = dim[-1], _sizes(op, dim)
    if not _is_short(sizes):
        y = _apart(op, _transformed(op, x, last, onesided=int(onesided)), op.shape)
        for d in dim[:-1]:
            y = _apart(op, _transformed(op, y, d), op.shape)
        return _to_the_power(op, y, sizes, _EXPONENTS[normalization])
    *others, n = sizes
    cos, sin = _waves(op, n, n // 2 + 1 if onesided else n, n)
    y = Complex(_along(op, x, last, cos), op.Neg(_along(op, x, last, sin)))
    for d, size in zip(dim[:-1], others, strict=True):
        y = _turned(op, y, d, size, True)
    return _to_the_power(op, y, sizes, _EXPONENTS[normalization])


@on_complex("_fft_c2r")
def c2r(op: AtenBuilder, x: Complex, dim: Sequence[int], normalization: int, last_dim_size: Dim) -> Complex | Value:
    last = dim[-1]
    sizes = [*_sizes(op, dim[:-1]), last_dim_size]
    if not _is_short(sizes):
        for d in dim[:-1]:
            x = _apart(op, _transformed(op, x, d, inverse=1), op.input_shape(0))
        signal = op.Squeeze(_transformed(op, x, last, last_dim_size, inverse=1, onesided=1), [-1])
        return _to_the_power(op, op.typed(signal, op.shape), sizes, _EXPONENTS[normalization] + 1)
    *others, n = sizes
    for d, size in zip(dim[:-1], others, strict=True):
        x = _turned(op, x, d, size, False)
    frequencies = n // 2 + 1
    # All frequencies but the first, and the middle one of an even length, stand for their mirror image too.
    weight = np.full((frequencies, 1), 2.0)
    weight[0] = 1.0
    if n % 2 == 0:
        weight[-1] = 1.0
    cos, sin = _waves(op, frequencies, n, n, weight)
    y = _along(op, x.real, last, cos) - _along(op, x.imag, last, sin)
    return _to_the_power(op, y, sizes, _EXPONENTS[normalization])
