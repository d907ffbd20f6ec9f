"""DFT and STFT as products by constant matrices of cosines and sines."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import onnx_ir as ir

from ontrain.functions.interpolation import check_table, constant_of
from ontrain.functions.registry import NoBodyError, expansion
from ontrain.graph import Builder, register_inference, static_dims
from ontrain.operators import Value

__all__: list[str] = []


def _matrix(n: int, length: int, parts: int, *, inverse: bool, onesided: bool) -> np.ndarray[Any, Any]:
    """[n · parts, bins · 2]: n places of `parts` real numbers to the (real, imaginary) pairs of a transform.

    The transform has `length` points: of more places the rest is dropped, fewer are followed by zeros.
    """
    if length < 1:
        raise NoBodyError(f"a transform of {length} points", "give it one point at least")
    bins = length // 2 + 1 if onesided else length
    check_table(n * parts, bins * 2, "a Fourier transform")
    angle = 2 * np.pi * np.outer(np.arange(n), np.arange(bins)) / length
    cos, sin = np.cos(angle), np.sin(angle) * (1 if inverse else -1)
    cos[length:], sin[length:] = 0, 0
    real = np.stack([cos, sin], -1)
    full = np.stack([real, np.stack([-sin, cos], -1)], 1) if parts == 2 else real[:, None]
    return full.reshape(n * parts, bins * 2) / (length if inverse else 1)


def _half_matrix(n: int, length: int, parts: int) -> np.ndarray[Any, Any]:
    """[n · parts, length]: half of a spectrum, the other half being its mirror image, to the real signal."""
    if length < 1:
        raise NoBodyError(f"a transform of {length} points", "give it one point at least")
    check_table(n * parts, length, "a Fourier transform")
    bins = np.arange(n)
    weight = np.where((bins == 0) | (2 * bins == length), 1.0, 2.0) * (2 * bins <= length) / length
    angle = 2 * np.pi * np.outer(bins, np.arange(length)) / length
    real, imaginary = weight[:, None] * np.cos(angle), -weight[:, None] * np.sin(angle)
    return np.stack([real, imaginary][:parts], 1).reshape(n * parts, length)


@expansion("DFT")
def dft(
    op: Builder, x: Value, dft_length: Value | None = None, axis: Value | None = None,
    *, inverse: int = 0, onesided: int = 0,
) -> Value:  # fmt: skip
    """The discrete Fourier transform of x […, 1 or 2] along one axis (https://onnx.ai/onnx/operators/onnx__DFT.html)."""
    shape = static_dims(x)
    rank, parts = len(shape), shape[-1]
    chosen, length = constant_of(axis, "its input axis"), constant_of(dft_length, "its input dft_length")
    place = (int(chosen) if chosen is not None else -2) % rank
    n = shape[place]
    if inverse and onesided:
        matrix = _half_matrix(n, 2 * (n - 1) if length is None else int(length), parts)
    else:
        matrix = _matrix(n, n if length is None else int(length), parts, inverse=bool(inverse), onesided=bool(onesided))
    perm = [*(i for i in range(rank - 1) if i != place), place, rank - 1]
    moved = op.Transpose(x, perm=perm)
    lead = list(static_dims(moved)[:-2])
    product = op.MatMul(op.Reshape(moved, [-1, n * parts]), op.const(matrix, x.dtype))
    components = 1 if inverse and onesided else 2
    product = op.Reshape(product, [*lead, matrix.shape[1] // components, components])
    return op.Transpose(product, perm=[int(i) for i in np.argsort(perm)])


@expansion("STFT")
def stft(
    op: Builder, signal: Value, frame_step: Value, window: Value | None = None, frame_length: Value | None = None,
    *, onesided: int = 1,
) -> Value:  # fmt: skip
    """The transforms of the overlapping, windowed frames of signal [B, L] or [B, L, 1 or 2], as [B, frames, bins, 2].

    Source: https://onnx.ai/onnx/operators/onnx__STFT.html
    """
    shape = static_dims(signal)
    batch, length, parts = shape[0], shape[1], shape[2] if len(shape) > 2 else 1
    step, size = constant_of(frame_step, "its input frame_step"), constant_of(frame_length, "its input frame_length")
    assert step is not None
    assert size is not None or window is not None
    n = int(size) if size is not None else static_dims(cast(Value, window))[0]
    starts = np.arange((length - n) // int(step) + 1) * int(step)
    frames = op.Gather(op.Reshape(signal, [batch, length, parts]), starts[:, None] + np.arange(n), axis=1)
    if window is not None:
        frames = frames * op.Reshape(window, [n, 1])
    return op.DFT(frames, None, op.const(np.array(2)), onesided=onesided)


def _stft_types(node: ir.Node) -> list[tuple[ir.DataType, ir.Shape]]:
    """[B, frames, bins, 2]. onnx's own rule gives a one-sided transform all bins."""
    signal, step, window, size = [*node.inputs, None, None][:4]
    assert signal is not None and signal.dtype is not None and signal.shape is not None and step is not None
    n = None if size is None or size.const_value is None else int(size.const_value.numpy())
    if n is None and window is not None and window.shape is not None:
        n = window.shape[0] if isinstance(window.shape[0], int) else None
    length, by = signal.shape[1], None if step.const_value is None else int(step.const_value.numpy())
    frames = (length - n) // by + 1 if isinstance(length, int) and n is not None and by is not None else None
    bins = n if n is None or not node.attributes.get_int("onesided", 1) else n // 2 + 1
    return [(signal.dtype, ir.Shape([signal.shape[0], frames, bins, 2]))]


register_inference("STFT", _stft_types, "")
