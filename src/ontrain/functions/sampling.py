"""Images read at computed places: GridSample and DeformConv, as gathers of rows with weights."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.functions.registry import NoBodyError, composite, expansion
from ontrain.graph import Builder, static_dims
from ontrain.operators import Value

__all__ = ["LINEAR", "neighbours", "pixel_rows"]

Array = np.ndarray[Any, Any]


def _kernel(taps: Sequence[int], *pieces: Sequence[float]) -> tuple[Array, Array]:
    """Taps, and their weights as polynomials [power, tap] in how far a place lies behind tap 0.

    Piece k of a symmetric kernel holds for distances from k to k + 1, as coefficients from power 0 up.
    """
    weights = []
    for tap in taps:
        distance = np.polynomial.Polynomial([-tap, 1] if tap < 1 else [tap, -1])
        piece = pieces[-tap if tap < 1 else tap - 1]
        polynomial = sum((c * distance**power for power, c in enumerate(piece)), np.polynomial.Polynomial([0.0]))
        weights.append(polynomial.coef)
    return np.array(taps, np.float64), np.stack(weights, 1)


_A = -0.75
LINEAR = _kernel((0, 1), (1, -1))
_CUBIC = _kernel((-1, 0, 1, 2), (1, 0, -(_A + 3), _A + 2), (-4 * _A, 8 * _A, -5 * _A, _A))  # Keys 1981


def pixel_rows(op: Builder, x: Value) -> Value:
    """x [N, C, …] as one row of channels per place: [N · places, C]."""
    n, c, *space = static_dims(x)
    places = math.prod(space)
    return op.Reshape(op.Transpose(op.Reshape(x, [n, c, places]), perm=[0, 2, 1]), [n * places, c])


def neighbours(
    op: Builder, rows: Value, first: Value, at: Sequence[Any], sizes: Sequence[int],
    kernel: tuple[Array, Array] = LINEAR, bring: Callable[[Any, int], Any] | None = None,
) -> Value:  # fmt: skip
    """The weighted values [N, P, T, C] of the T taps around each place.

    Args:
        op: the builder.
        rows: the images by `pixel_rows`.
        first: the row at which each image begins, broadcasting to [N, 1].
        at: for each axis the places [N, P].
        sizes: for each axis the image's extent.
        kernel: taps and weights.
        bring: brings a place (of an axis of some extent) onto the image; without it, a tap outside counts zero.
    """
    flat, weight, count = None, None, 1
    (n, p), (taps, powers) = static_dims(at[0]), kernel
    for place, size in zip(at, sizes, strict=True):
        below = op.Floor(place)
        rest = op.Unsqueeze(place - below, [2])
        share = op.const(powers[-1], place.dtype)
        for power in powers[-2::-1]:
            share = share * rest + op.const(power, place.dtype)
        tap = op.Unsqueeze(below, [2]) + op.const(taps, place.dtype)
        if bring is None:
            share = op.Where(_inside(op, tap, size), share, 0.0)
        else:
            tap = bring(tap, size)
        index = _index(op, tap, size)
        if flat is None or weight is None:
            flat, weight = index, share
        else:
            flat = op.Add(op.Mul(op.Unsqueeze(flat, [3]), size), op.Unsqueeze(index, [2]))
            weight = op.Unsqueeze(weight, [3]) * op.Unsqueeze(share, [2])
            flat, weight = (op.Reshape(v, [n, p, count * len(taps)]) for v in (flat, weight))
        count *= len(taps)
    values = op.Gather(rows, op.Add(flat, op.Unsqueeze(first, [2])), axis=0)
    return values * op.Unsqueeze(op.Cast(weight, to=values.dtype), [3])


def _index(op: Builder, place: Value, size: int) -> Value:
    return op.Cast(op.Clip(place, 0.0, float(size - 1)), to=ir.DataType.INT64)


def _inside(op: Builder, place: Value, size: int) -> Value:
    return op.And(op.GreaterOrEqual(place, 0.0), op.LessOrEqual(place, float(size - 1)))


@expansion("GridSample")
def grid_sample(
    op: Builder, x: Value, grid: Value, *, align_corners: int = 0, mode: str = "linear", padding_mode: str = "zeros"
) -> Value:
    """x [N, C, D₁ … Dᵣ] at grid [N, …, r], whose last component belongs to D₁ and runs from −1 to 1.

    Source: https://onnx.ai/onnx/operators/onnx__GridSample.html
    """
    n, c, *sizes = static_dims(x)
    out, at = static_dims(grid)[1:-1], _places(op, grid, sizes, align_corners)
    if mode not in ("cubic", "bicubic"):
        at = [_bounded(op, v, size, mode=padding_mode, align=align_corners) for v, size in zip(at, sizes, strict=True)]
    rows, first = pixel_rows(op, x), op.const(np.arange(n, dtype=np.int64)[:, None] * math.prod(sizes))
    if mode == "nearest":
        y = _nearest(op, rows, first, [op.Round(v) for v in at], sizes)
    elif mode in ("cubic", "bicubic"):
        bring = (
            None if padding_mode == "zeros" else functools.partial(_bounded, op, mode=padding_mode, align=align_corners)
        )
        y = op.ReduceSum(neighbours(op, rows, first, at, sizes, _CUBIC, bring), [2], keepdims=0)
    else:
        y = op.ReduceSum(neighbours(op, rows, first, at, sizes), [2], keepdims=0)
    return op.Reshape(op.Transpose(y, perm=[0, 2, 1]), [n, c, *out])


def _places(op: Builder, grid: Value, sizes: Sequence[int], align_corners: int) -> list[Value]:
    """For each axis the places [N, P] that a grid names, in pixels from the first one's middle."""
    n, *out, rank = static_dims(grid)
    points = op.Reshape(grid, [n, math.prod(out), rank])
    at = []
    for axis, size in enumerate(sizes):
        unit = op.Squeeze(op.Slice(points, [rank - 1 - axis], [rank - axis], [2]), [2])
        at.append((unit + 1) * ((size - 1) / 2) if align_corners else ((unit + 1) * float(size) - 1) / 2)
    return at


@composite("GridSampleGrad", like=[1, 2])
def grid_sample_grad(
    op: Builder, dy: Value, x: Value, grid: Value, *, align_corners: int = 0, padding_mode: str = "zeros"
) -> tuple[Value, Value]:
    """Adjoints of images and grid of a GridSample that weights neighbours linearly.

    A pixel gets dy by its weight. A place gets, for each axis, dy times the difference between the two neighbours,
    or nothing where it was brought onto the image's border.
    """
    n, c, *sizes = static_dims(x)
    rank, places = len(sizes), math.prod(static_dims(grid)[1:-1])
    flat, shares, slopes = None, list[Value](), list[Value]()
    for axis, (named, size) in enumerate(zip(_places(op, grid, sizes, align_corners), sizes, strict=True)):
        place = _bounded(op, named, size, mode=padding_mode, align=align_corners)
        below = op.Floor(place)
        rest = op.Unsqueeze(place - below, [2])
        taps = op.Unsqueeze(below, [2]) + op.const(np.array([0.0, 1.0]), place.dtype)
        inside = op.Cast(_inside(op, taps, size), to=place.dtype)
        speed = _speed(op, named, size, mode=padding_mode, align=align_corners)
        slope = op.Unsqueeze(speed, [2]) * op.const(np.array([-1.0, 1.0]), place.dtype)
        along = [n, places, *(2 if i == axis else 1 for i in range(rank))]
        shares.append(op.Reshape(op.Concat(1 - rest, rest, axis=2) * inside, along))
        slopes.append(op.Reshape(slope * inside, along))
        index = op.Reshape(_index(op, taps, size), along)
        flat = index if flat is None else op.Add(op.Mul(flat, size), index)
    first = op.const(np.arange(n, dtype=np.int64)[:, None] * math.prod(sizes))
    picked = op.Add(op.Reshape(flat, [n, places, 2**rank]), op.Unsqueeze(first, [2]))
    above = op.Transpose(op.Reshape(dy, [n, c, places]), perm=[0, 2, 1])
    rows = pixel_rows(op, x)
    dots = op.MatMul(op.Gather(rows, picked, axis=0), op.Unsqueeze(above, [3]))
    dots = op.Reshape(dots, [n, places, *[2] * rank])
    taps_axes, dgrid = list(range(2, 2 + rank)), list[Value]()
    for axis, size in enumerate(sizes):
        factors = [slopes[i] if i == axis else share for i, share in enumerate(shares)]
        step = op.ReduceSum(functools.reduce(operator.mul, factors, dots), taps_axes, keepdims=0)
        dgrid.insert(0, op.Unsqueeze(step * ((size - 1) / 2 if align_corners else size / 2), [2]))
    weights = op.Reshape(functools.reduce(operator.mul, shares), [n, places, 2**rank, 1])
    parts = op.Reshape(weights * op.Unsqueeze(above, [2]), [n * places * 2**rank, c])
    zeros = op.Expand(op.const(0.0, x.dtype), list(static_dims(rows)))
    dx = op.ScatterND(zeros, op.Reshape(picked, [n * places * 2**rank, 1]), parts, reduction="add")
    dx = op.Reshape(op.Transpose(op.Reshape(dx, [n, math.prod(sizes), c]), perm=[0, 2, 1]), [n, c, *sizes])
    return dx, op.Reshape(op.Concat(*dgrid, axis=2), list(static_dims(grid)))


def _speed(op: Builder, at: Value, size: int, *, mode: str, align: int) -> Value:
    """By how much a place moves on the image where the place that was named moves by one."""
    forwards = op.const(1.0, at.dtype)
    if mode == "zeros":
        return op.Expand(forwards, op.shape_of(at))
    direction = forwards
    if mode == "reflection":
        low, span = (0.0, float(size - 1)) if align else (-0.5, float(size))
        turns = op.Floor(op.Abs(at - low) / span) if span else at * 0.0
        even = op.Equal(turns, op.Floor(turns / 2) * 2)
        direction = op.Where(op.Equal(op.Less(at, low), even), -1.0, forwards)
    place = _bounded(op, at, size, mode=mode, align=align)
    return op.Where(op.And(op.Greater(place, 0.0), op.Less(place, float(size - 1))), direction, 0.0)


def _nearest(op: Builder, rows: Value, first: Value, places: Sequence[Any], sizes: Sequence[int]) -> Value:
    flat, keep = first, None
    for i, (place, size) in enumerate(zip(places, sizes, strict=True)):
        flat = op.Add(flat, op.Mul(_index(op, place, size), math.prod(sizes[i + 1 :])))
        keep = _inside(op, place, size) if keep is None else op.And(keep, _inside(op, place, size))
    return op.Where(op.Unsqueeze(keep, [2]), op.Gather(rows, flat, axis=0), 0.0)


def _bounded(op: Builder, at: Value, size: int, *, mode: str, align: int) -> Value:
    """A place brought onto the image by the padding mode; zeros leaves it where it is."""
    if mode == "zeros":
        return at
    if mode == "reflection":
        low, span = (0.0, float(size - 1)) if align else (-0.5, float(size))
        if not span:
            return at * 0.0
        beyond = op.Abs(at - low)
        turns = op.Floor(beyond / span)
        rest = beyond - turns * span
        even = op.Equal(turns, op.Floor(turns / 2) * 2)
        at = op.Where(even, rest, span - rest) + low
    return op.Clip(at, 0.0, float(size - 1))


@expansion("DeformConv")
def deform_conv(
    op: Builder, x: Value, w: Value, offset: Value, b: Value | None = None, mask: Value | None = None,
    *, dilations: Sequence[int] | None = None, group: int = 1, kernel_shape: Sequence[int] | None = None,
    offset_group: int = 1, pads: Sequence[int] | None = None, strides: Sequence[int] | None = None,
) -> Value:  # fmt: skip
    """A convolution whose kernel elements read x [N, C, …] at places of their own, by linear interpolation.

    Source: https://onnx.ai/onnx/operators/onnx__DeformConv.html
    """
    (n, c, *sizes), kernel, out = static_dims(x), static_dims(w)[2:], static_dims(offset)[2:]
    rank, groups, elements, places = len(sizes), offset_group, math.prod(kernel), math.prod(out)
    steps, gaps, margins = strides or [1] * rank, dilations or [1] * rank, pads or [0] * (2 * rank)
    if rank != len(kernel):
        raise NoBodyError("kernel and image have different ranks", "give the kernel the rank of the image")
    offsets = op.Reshape(offset, [n * groups, elements, rank, places])
    at = []
    for axis in range(rank):
        shape = [-1 if i == axis else 1 for i in range(rank)]
        taps = np.broadcast_to(np.arange(kernel[axis]).reshape(shape) * gaps[axis], kernel).reshape(-1, 1)
        starts = np.broadcast_to(np.arange(out[axis]).reshape(shape) * steps[axis] - margins[axis], out).reshape(1, -1)
        moved = op.Squeeze(op.Slice(offsets, [axis], [axis + 1], [2]), [2])
        at.append(op.Reshape(moved + op.const(taps + starts, offset.dtype), [n * groups, elements * places]))
    rows = pixel_rows(op, op.Reshape(x, [n * groups, c // groups, *sizes]))
    first = op.const(np.arange(n * groups, dtype=np.int64)[:, None] * math.prod(sizes))
    read = op.ReduceSum(neighbours(op, rows, first, at, sizes), [2], keepdims=0)
    if mask is not None:
        read = read * op.Reshape(mask, [n * groups, elements * places, 1])
    read = op.Transpose(op.Reshape(read, [n, groups, elements, places, c // groups]), perm=[0, 1, 4, 2, 3])
    columns = op.Reshape(read, [n, group, c // group * elements, places])
    filters = op.Reshape(w, [group, static_dims(w)[0] // group, c // group * elements])
    y = op.Reshape(op.MatMul(filters, columns), [n, static_dims(w)[0], *out])
    return y if b is None else y + op.Reshape(b, [1, -1] + [1] * rank)
