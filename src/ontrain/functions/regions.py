"""RoiAlign and MaxRoiPool: pieces of images brought to one size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.functions.registry import NoBodyError, expansion
from ontrain.functions.sampling import neighbours, pixel_rows
from ontrain.graph import Builder, static_dims
from ontrain.operators import Value

__all__: list[str] = []


@expansion("RoiAlign")
def roi_align(
    op: Builder, x: Value, rois: Value, batch: Value,
    *, coordinate_transformation_mode: str = "half_pixel", mode: str = "avg", output_height: int = 1,
    output_width: int = 1, sampling_ratio: int = 0, spatial_scale: float = 1.0,
) -> Value:  # fmt: skip
    """x [N, C, H, W] read at a grid of places in each bin of each region [R, 4] (x₁, y₁, x₂, y₂), by interpolation.

    Under mode max the largest weighted neighbour of all places counts, not the largest interpolated value, as onnx
    and onnxruntime have it. Source: https://onnx.ai/onnx/operators/onnx__RoiAlign.html
    """
    channels, sizes = static_dims(x)[1], static_dims(x)[2:]
    count, bins = static_dims(rois)[0], (output_height, output_width)
    half = coordinate_transformation_mode == "half_pixel"
    at, inner, shares = [], None, []
    for axis, (size, n) in enumerate(zip(sizes, bins, strict=True)):
        start, end = (_column(op, rois, i) * spatial_scale - 0.5 * half for i in (1 - axis, 3 - axis))
        length = end - start if half else op.Max(end - start, 1.0)
        fractions, share = _samples(rois, axis, n, sampling_ratio, spatial_scale, half)
        grid = np.arange(n)[:, None] + fractions[:, None, :]  # [R or 1, bins, samples]
        place = start + length * op.const((grid / n).reshape(len(grid), -1), x.dtype)  # [R, bins · samples]
        on = op.And(op.GreaterOrEqual(place, -1.0), op.LessOrEqual(place, float(size)))
        place = op.Clip(place, 0.0, float(size - 1))
        shape = [count, -1, 1] if axis == 0 else [count, 1, -1]
        on, place = op.Reshape(on, shape), op.Reshape(place, shape)
        inner = on if inner is None else op.And(inner, on)
        at.append(place)
        shares.append(share)
    samples = [s.shape[1] for s in shares]
    whole = [count, output_height * samples[0], output_width * samples[1]]
    points = [op.Reshape(op.Expand(v, whole), [count, whole[1] * whole[2]]) for v in at]
    first = op.Mul(op.Unsqueeze(op.Cast(batch, to=ir.DataType.INT64), [1]), math.prod(sizes))
    inner = op.Reshape(inner, [count, whole[1] * whole[2], 1, 1])
    interpolated = op.Where(inner, neighbours(op, pixel_rows(op, x), first, points, sizes), 0.0)
    value = (op.ReduceSum if mode == "avg" else op.ReduceMax)(interpolated, [2], keepdims=0)
    value = op.Reshape(value, [count, output_height, samples[0], output_width, samples[1], channels])
    share = shares[0][:, None, :, None, None, None] * shares[1][:, None, None, None, :, None]
    if mode == "avg":
        value = op.ReduceSum(value * op.const(share, x.dtype), [2, 4], keepdims=0)
    else:
        value = op.ReduceMax(op.Where(share > 0, value, float(x.dtype.min)), [2, 4], keepdims=0)
    return op.Transpose(value, perm=[0, 3, 1, 2])


def _column(op: Builder, rois: Value, index: int) -> Value:
    return op.Slice(rois, [index], [index + 1], [1])


def _samples(
    rois: Value, axis: int, bins: int, ratio: int, scale: float, half: bool
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """For each region (or for all at once) where in a bin its samples lie, and each one's share in the mean."""
    counts = np.array([ratio])
    if not ratio:
        if rois.const_value is None:
            raise NoBodyError("sampling_ratio 0 takes a number of samples that depends on the regions' sizes",
                         "set sampling_ratio, or make the regions constants")  # fmt: skip
        known = np.asarray(rois.const_value.numpy(), np.float64)
        length = (known[:, 3 - axis] - known[:, 1 - axis]) * scale
        counts = np.ceil((length if half else np.maximum(length, 1.0)) / bins).astype(np.int64)
    steps = np.arange(max(1, counts.max()))
    some = np.maximum(counts, 1)[:, None]
    return (steps + 0.5) / some, np.where(steps < counts[:, None], 1.0 / some, 0.0)


@expansion("MaxRoiPool")
def max_roi_pool(
    op: Builder, x: Value, rois: Value, *, pooled_shape: Sequence[int] = (1, 1), spatial_scale: float = 1.0
) -> Value:
    """The maximum of x [N, C, H, W] over each bin of each region [R, 5] (image, x₁, y₁, x₂, y₂); zero for an empty bin.

    Source: https://onnx.ai/onnx/operators/onnx__MaxRoiPool.html
    """
    count, sizes = static_dims(rois)[0], static_dims(x)[2:]
    image = op.Cast(op.Reshape(_column(op, rois, 0), [count]), to=ir.DataType.INT64)
    y, empty = op.Gather(x, image, axis=0), None
    for axis, bins in ((1, pooled_shape[1]), (0, pooled_shape[0])):
        start, end = (op.Floor(_column(op, rois, i) * spatial_scale + 0.5) for i in (2 - axis, 4 - axis))
        length = op.Max(end - start + 1, 1.0)
        edges = np.arange(bins, dtype=np.float64)[None]
        low = op.Floor(length * op.const(edges, x.dtype) / float(bins)) + start
        high = op.Ceil(length * op.const(edges + 1, x.dtype) / float(bins)) + start
        low, high = (op.Clip(v, 0.0, float(sizes[axis])) for v in (low, high))
        places = op.const(np.arange(sizes[axis], dtype=np.float64).reshape(1, 1, -1), x.dtype)
        low3, high3 = op.Unsqueeze(low, [2]), op.Unsqueeze(high, [2])
        member = op.And(op.GreaterOrEqual(places, low3), op.Less(places, high3))  # [R, bins, size]
        # The other axis stands in front of the bins: [R, C, other, 1, size] under [R, 1, 1, bins, size].
        read = op.Where(op.Unsqueeze(member, [1, 2]), op.Unsqueeze(y, [3]), float(x.dtype.min))
        y = op.Transpose(op.ReduceMax(read, [4], keepdims=0), perm=[0, 1, 3, 2])
        none = op.Reshape(op.LessOrEqual(high, low), [count, 1, 1, bins] if axis == 1 else [count, 1, bins, 1])
        empty = none if empty is None else op.Or(empty, none)
    return op.Where(empty, 0.0, y)
