"""Pooling to a given size, and gradients of pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ontrain.functions.registry import composite
from ontrain.graph import Builder, static_dims
from ontrain.operators import Value, adaptive_windows, window_counts, window_places

__all__: list[str] = []


def _types(inputs: list[Any], *, shape: Sequence[int] = (), **_: object) -> list[tuple[ir.DataType, ir.Shape]]:
    return [(inputs[0].dtype, ir.Shape(list(shape)))]


@composite("MaxPoolGrad", infer=_types)
def max_pool_grad(op: Builder, dy: Value, indices: Value, *, shape: Sequence[int] = ()) -> Value:
    """dy added at the places of an input of `shape` that MaxPool's second output, `indices`, counts flat."""
    zeros = op.Expand(op.const(0.0, dy.dtype), [math.prod(shape)])
    flat = op.ScatterElements(zeros, op.Reshape(indices, [-1]), op.Reshape(dy, [-1]), axis=0, reduction="add")
    return op.Reshape(flat, list(shape))


@composite("AveragePoolGrad", infer=_types)
def average_pool_grad(
    op: Builder, dy: Value,
    *, shape: Sequence[int] = (), kernel_shape: Sequence[int] = (), strides: Sequence[int] = (),
    dilations: Sequence[int] = (), pads: Sequence[int] = (), count_include_pad: int = 0,
) -> Value:  # fmt: skip
    """dy divided by each window's count and spread over its window, for an input of `shape` [N, C, …]."""
    rank = len(kernel_shape)
    out, space = static_dims(dy)[2:], list(shape)[2:]
    places = [window_places(*axis) for axis in zip(out, kernel_shape, strides, dilations, pads[:rank], strict=True)]
    counts = window_counts(places, space, pads, count_include_pad)
    images = op.Reshape(dy / op.const(counts, dy.dtype), [-1, 1, *out])
    # A lone window that reaches beyond the input finds nothing there.
    whole = [o == 1 and not before for o, before in zip(out, pads[:rank], strict=True)]
    kernel_shape = [min(k, n) if alone else k for k, n, alone in zip(kernel_shape, space, whole, strict=True)]
    ones = op.Expand(op.const(1.0, dy.dtype), [1, 1, *kernel_shape])
    full = op.ConvTranspose(images, ones, strides=strides, dilations=dilations)
    sizes, axes = static_dims(full)[2:], list(range(2, 2 + rank))
    inside = op.Slice(full, list(pads[:rank]), [pads[i] + space[i] for i in range(rank)], axes)
    missing = [max(0, pads[i] + space[i] - sizes[i]) for i in range(rank)]
    inside = op.Pad(inside, [0] * (rank + 4) + missing) if any(missing) else inside
    return op.Reshape(inside, list(shape))


def _adaptive_types(inputs: list[Any], *, output_size: Sequence[int] = ()) -> list[tuple[ir.DataType, ir.Shape]]:
    shape = ir.Shape([*list(inputs[0].shape)[: -len(output_size)], *output_size])
    return [(inputs[0].dtype, shape), (ir.DataType.INT64, shape)]


def _shares(size: int, count: int) -> npt.NDArray[np.float64]:
    """What each of `count` means takes of each place of an axis: [size, count]."""
    shares = np.zeros((size, count))
    for i, window in enumerate(adaptive_windows(size, count)):
        shares[window, i] = 1 / len(window)
    return shares


def _along(op: Builder, x: Value, axis: int, matrix: npt.NDArray[np.float64]) -> Value:
    """x times a matrix over one axis."""
    rank, factor = len(x.shape), op.const(matrix, x.dtype)
    if axis == rank - 1:
        return op.MatMul(x, factor)
    perm = [*(d for d in range(rank) if d != axis), axis]
    return op.Transpose(op.MatMul(op.Transpose(x, perm=perm), factor), perm=[perm.index(d) for d in range(rank)])


@composite("AdaptiveAveragePool", infer=_adaptive_types)
def adaptive_average_pool(op: Builder, x: Value, *, output_size: Sequence[int] = ()) -> Value:
    """The means over windows that divide the last axes into as many parts as `output_size` says.

    Source: torch.nn.functional.adaptive_avg_pool2d and its relatives. A product with each axis's shares.
    """
    space = _space(x, len(output_size))
    for axis, (size, count) in enumerate(zip(space, output_size, strict=True), len(x.shape) - len(space)):
        x = _along(op, x, axis, _shares(size, count))
    return x


@composite("AdaptiveAveragePoolGrad", infer=_types)
def adaptive_average_pool_grad(op: Builder, dy: Value, *, shape: Sequence[int] = (), rank: int = 2) -> Value:
    """dy divided by each window's count and spread over its window, for the last `rank` axes of an input of `shape`."""
    for axis, (size, count) in enumerate(zip(shape, static_dims(dy), strict=True)):
        if size != count:
            dy = _along(op, dy, axis, _shares(size, count).T)
    return dy


@composite("AdaptiveMaxPool", infer=_adaptive_types)
def adaptive_max_pool(op: Builder, x: Value, *, output_size: Sequence[int] = ()) -> tuple[Value, Value]:
    """The maxima over windows that divide the last axes, and their places counted within these, int64.

    The elements of each window are gathered along a new axis, and the first greatest of them taken.
    Source: torch.nn.functional.adaptive_max_pool2d and its relatives.
    """
    space, lead = _space(x, len(output_size)), [0] * (len(x.shape) - len(output_size))
    table = np.zeros((1, 1), np.int64)
    for size, count in zip(space, output_size, strict=True):
        windows = adaptive_windows(size, count)
        longest = max(len(window) for window in windows)
        # A short window names its last element again, which the first of equals leaves out.
        own = np.array([[*window, *[window[-1]] * (longest - len(window))] for window in windows])
        table = table[:, None, :, None] * size + own[None, :, None, :]
        table = table.reshape(table.shape[0] * table.shape[1], -1)
    table = np.sort(table, axis=1)
    gathered = op.Gather(op.Reshape(x, [*lead, math.prod(space)]), op.const(table), axis=-1)
    at = op.ArgMax(gathered, axis=-1, keepdims=1)
    rows = np.arange(len(table)) * table.shape[1]
    places = op.Gather(op.const(table.ravel()), op.Add(op.Squeeze(at, [-1]), op.const(rows)), axis=0)
    target = [*lead, *output_size]
    return op.Reshape(op.GatherElements(gathered, at, axis=-1), target), op.Reshape(places, target)


def _space(x: Value, rank: int) -> list[int]:
    """The sizes of the last axes, where those before may vary."""
    sizes = [size for size in list(x.shape)[-rank:] if isinstance(size, int)]
    assert len(sizes) == rank, "the size of an image varies"
    return sizes


@composite("AdaptiveMaxPoolGrad", infer=_types)
def adaptive_max_pool_grad(op: Builder, dy: Value, places: Value, *, shape: Sequence[int] = (), rank: int = 2) -> Value:
    """dy added at the places, counted within the last `rank` axes, of an input of `shape`."""
    lead, plane = list(shape[:-rank]), math.prod(shape[-rank:])
    rows = [*lead, math.prod(static_dims(dy)[-rank:])]
    zeros = op.Expand(op.const(0.0, dy.dtype), [*lead, plane])
    dx = op.ScatterElements(zeros, op.Reshape(places, rows), op.Reshape(dy, rows), axis=-1, reduction="add")
    return op.Reshape(dx, list(shape))
