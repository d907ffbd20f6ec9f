"""Resize and AffineGrid: linear maps whose matrices are known when the plan is made."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.functions.registry import NoBodyError, expansion
from ontrain.graph import Builder, is_float, static_dims
from ontrain.operators import Value, affine_places, scaled_size
from ontrain.units import byte_text

__all__ = ["along", "check_table", "constant_of", "repeated", "weights_between"]

Array = np.ndarray[Any, Any]

_CUBIC = -0.75
"""The coefficient of the cubic kernel that Resize has by default, and ATen's kernels always."""


def constant_of(value: ir.Value | None, what: str) -> Array | None:
    """The array of a constant input, None for one that is left out.

    Raises:
        NoBodyError: the graph computes it.
    """
    if value is None:
        return None
    if value.const_value is None:
        raise NoBodyError(f"{what} is computed by the graph, and the body needs its value", f"make {what} a constant")
    return np.asarray(value.const_value.numpy())


def along(op: Builder, x: Value, axis: int, matrix: Array) -> Value:
    """Multiply x along one axis by a constant [m, n] matrix."""
    shape = list(static_dims(x))
    lengths = [*shape[:axis], matrix.shape[0], *shape[axis + 1 :]]
    lead, tail = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    if tail == 1:
        product = op.MatMul(op.Reshape(x, [lead, shape[axis]]), op.const(np.ascontiguousarray(matrix.T), x.dtype))
    else:
        product = op.MatMul(op.const(matrix, x.dtype), op.Reshape(x, [lead, shape[axis], tail]))
    return op.Reshape(product, lengths)


@expansion("Resize")
def resize(
    op: Builder, x: Value, roi: Value | None = None, scales: Value | None = None, sizes: Value | None = None,
    *, antialias: int = 0, axes: Sequence[int] | None = None, coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = _CUBIC, exclude_outside: int = 0, extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch", mode: str = "nearest", nearest_mode: str = "round_prefer_floor",
) -> Value:  # fmt: skip
    """One product by a constant matrix an axis, or one Gather for nearest neighbours.

    Source: https://onnx.ai/onnx/operators/onnx__Resize.html
    """
    shape = static_dims(x)
    over = [a % len(shape) for a in axes] if axes is not None else list(range(len(shape)))
    factors, lengths = _extents(
        [shape[a] for a in over], constant_of(scales, "its input scales"), constant_of(sizes, "its input sizes"),
        keep_aspect_ratio_policy,
    )  # fmt: skip
    crop = coordinate_transformation_mode == "tf_crop_and_resize"
    if not crop and lengths == [shape[a] for a in over]:
        return op.Identity(x)  # whatever the scales say, as onnxruntime has it
    if is_float(x) and not antialias and not exclude_outside:
        shown = mode if mode != "cubic" or cubic_coeff_a == _CUBIC else ""
        native = _native(shape, over, factors, lengths, (shown, coordinate_transformation_mode, nearest_mode))
        if native is not None:
            return op.composite("Interpolate", x, size=native[0], mode=native[1])
    window = constant_of(roi, "its input roi") if crop else None
    outside = np.zeros([1] * len(shape), bool)
    whole = None if is_float(x) or mode == "nearest" else x.dtype
    y = op.Cast(x, to=1) if whole is not None else x
    for i, axis in enumerate(over):
        n, m = shape[axis], lengths[i]
        if (factors[i] == 1 or antialias) and n == m and not crop:
            continue
        part = (float(window[i]), float(window[len(over) + i])) if window is not None else (0.0, 1.0)
        # Which neighbour is nearest at a tie is a matter of rounding: onnxruntime and torch compute places in single.
        work = np.float32 if mode == "nearest" else np.float64
        shrink = min(factors[i], 1.0) if antialias else 1.0
        # Beside the table, making it takes several arrays of the neighbours that are looked at.
        check_table(m, 1 if mode == "nearest" else n + 7 * _neighbours(mode, shrink), "Resize")
        places = _source(n, m, work(factors[i]), coordinate_transformation_mode, part)
        if mode == "nearest":
            y = _picked(op, y, np.clip(_ROUNDING[nearest_mode](places), 0, n - 1).astype(np.int64), axis)
        else:
            y = along(op, y, axis, _weights(places, n, shrink, mode, cubic_coeff_a, bool(exclude_outside)))
        if crop:
            beyond = (places < 0) | (places > n - 1)
            outside = outside | beyond.reshape([-1 if a == axis else 1 for a in range(len(shape))])
    if whole is not None:
        y = op.Cast(y, to=whole)
    return op.Where(outside, op.const(extrapolation_value, y.dtype), y) if outside.any() else op.Identity(y)


_ALIGNED = {"linear": "aligned", "cubic": "cubic aligned"}


def _native(
    shape: Sequence[int], over: Sequence[int], factors: Sequence[float], lengths: Sequence[int],
    ways: tuple[str, str, str],
) -> tuple[list[int], str] | None:  # fmt: skip
    """Size and mode of the composite Interpolate that a Resize of images is; None for another."""
    axes = [(axis, factor, m) for axis, factor, m in zip(over, factors, lengths, strict=True) if m != shape[axis]]
    if len(shape) != 4 or 0 in shape or not axes or any(axis < 2 or m == 0 for axis, _, m in axes):
        return None
    size, modes = list(shape[2:]), set[str | None]()
    for axis, factor, m in axes:
        size[axis - 2] = m
        modes.add(_native_mode(shape[axis], m, factor, *ways))
    (common,) = modes if len(modes) == 1 else (None,)
    still = any(factor != 1 for axis, factor, m in zip(over, factors, lengths, strict=True) if m == shape[axis])
    return None if common is None or still else (size, common)


def _native_mode(n: int, m: int, factor: float, mode: str, transformation: str, rounding: str) -> str | None:
    """The mode of Interpolate by which n pixels become m; None if there is none."""
    if mode == "nearest" and m % n == 0 and transformation != "tf_crop_and_resize":
        places = np.clip(_ROUNDING[rounding](_source(n, m, np.float32(factor), transformation, (0.0, 1.0))), 0, n - 1)
        return "nearest" if np.array_equal(places, np.repeat(np.arange(n), m // n)) else None
    if mode not in ("linear", "cubic") or factor != m / n:
        return None
    middles = transformation == "half_pixel" or (transformation == "pytorch_half_pixel" and m > 1)
    aligned = transformation == "align_corners" and m > 1
    return mode if middles else _ALIGNED[mode] if aligned else None


def _picked(op: Builder, x: Value, places: Array, axis: int) -> Value:
    """The elements at some places of an axis; where each is taken equally often, one after the other, as repeats."""
    shape = list(static_dims(x))
    times, rest = divmod(len(places), shape[axis])
    if rest or not times or not np.array_equal(places, np.repeat(np.arange(shape[axis]), times)):
        return op.Gather(x, places, axis=axis)
    return repeated(op, x, axis, times)


def repeated(op: Builder, x: Value, axis: int, times: int) -> Value:
    """Return x with each element of an axis so many times, one after the other."""
    shape = list(static_dims(x))
    apart = op.Unsqueeze(x, [axis + 1])
    spread = op.Expand(apart, [*shape[: axis + 1], times, *shape[axis + 1 :]])
    return op.Reshape(spread, [*shape[:axis], shape[axis] * times, *shape[axis + 1 :]])


def _extents(dims: list[int], scales: Array | None, sizes: Array | None, policy: str) -> tuple[list[float], list[int]]:
    """Scale factor and output length of each resized axis."""
    if scales is not None and scales.size:
        factors = [float(s) for s in scales]
        return factors, [scaled_size(d, s) for d, s in zip(dims, factors, strict=True)]
    if sizes is None:
        raise ValueError("Resize states neither scales nor sizes")
    wanted = [int(s) for s in sizes]
    if policy == "stretch":
        return [w / d for w, d in zip(wanted, dims, strict=True)], wanted
    pick: Callable[[list[float]], float] = min if policy == "not_larger" else max
    factor = pick([w / d for w, d in zip(wanted, dims, strict=True)])
    return [factor] * len(dims), [math.floor(factor * d + 0.5) for d in dims]


_LARGEST_TABLE = 1 << 30


def check_table(rows: int, columns: int, op_type: str) -> None:
    """Refuse a body whose constant table is larger than a gibibyte of float64: making it would take several times that.

    Raises:
        NoBodyError: it is.
    """
    if max(rows, 1) * max(columns, 1) * 8 > _LARGEST_TABLE:
        raise NoBodyError(
            f"a table of {rows} x {columns} numbers is needed for {op_type}, {byte_text(rows * columns * 8)}",
            "use a smaller size; if none was meant, the file is damaged",
        )


def _source(n: int, m: int, scale: np.floating[Any], transformation: str, part: tuple[float, float]) -> Array:
    """The place in the input, a real number of scale's type, that each of m output elements is taken from."""
    i = np.arange(m, dtype=scale.dtype)
    if transformation == "align_corners":
        return i * (n - 1) / (m - 1) if m > 1 else i
    if transformation == "asymmetric":
        places: Array = i / scale
        return places
    if transformation == "tf_crop_and_resize":
        start, end = part
        if m == 1:
            return np.array([0.5 * (start + end) * (n - 1)])
        return start * (n - 1) + i * (end - start) * (n - 1) / (m - 1)
    if transformation == "pytorch_half_pixel" and m == 1:
        return np.zeros(1)
    if transformation == "tf_half_pixel_for_nn":
        return (i + 0.5) / scale
    shift = n / 2 * (1 - m / (scale * n)) if transformation == "half_pixel_symmetric" else 0.0
    return shift + (i + 0.5) / scale - 0.5


_ROUNDING: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _neighbours(mode: str, shrink: float) -> int:
    """How many elements of the input are looked at for one of the output."""
    return 2 * math.ceil((2 if mode == "cubic" else 1) / shrink) + 2


def _weights(places: Array, n: int, shrink: float, mode: str, a: float, exclude_outside: bool) -> Array:
    """Interpolation weights [m, n]; with `shrink` below one the kernel is widened against aliasing."""
    reach = _neighbours(mode, shrink) // 2 - 1
    taps = np.floor(places)[:, None] + np.arange(-reach, reach + 2)
    distance = np.abs(taps - places[:, None]) * shrink
    weights = _cubic(distance, a) if mode == "cubic" else np.clip(1 - distance, 0, None)
    if exclude_outside:
        weights = np.where((taps >= 0) & (taps < n), weights, 0)
    if exclude_outside or shrink < 1:
        weights = weights / weights.sum(1, keepdims=True)
    matrix = np.zeros((len(places), n))
    columns = np.clip(taps, 0, n - 1).astype(np.int64)
    np.add.at(matrix, (np.arange(len(places))[:, None], columns), weights)
    return matrix


def weights_between(n: int, m: int, mode: str, transformation: str) -> Array:
    """Return how much of each of n elements is in each of m, by linear or cubic interpolation over all of them: [m, n].

    Raises:
        NoBodyError: the table is too large.
    """
    check_table(m, n + 7 * _neighbours(mode, 1.0), "Interpolate")
    places = _source(n, m, np.float64(m / n), transformation, (0.0, 1.0))
    return _weights(places, n, 1.0, mode, _CUBIC, exclude_outside=False)


def _cubic(t: Array, a: float) -> Array:
    """The cubic convolution kernel (Keys 1981) at distance t."""
    near = ((a + 2) * t - (a + 3)) * t * t + 1
    far = ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
    return np.where(t <= 1, near, np.where(t < 2, far, 0))


@expansion("AffineGrid")
def affine_grid(op: Builder, theta: Value, size: Value, *, align_corners: int = 0) -> Value:
    """theta [N, r, r + 1] applied to every place of a grid in [−1, 1]ʳ (https://onnx.ai/onnx/operators/onnx__AffineGrid.html)."""
    dims = constant_of(size, "its input size")
    assert dims is not None
    n, _, *space = (int(d) for d in dims)
    check_table(math.prod(space), len(space) + 1, "AffineGrid")
    places = affine_places(space, align_corners=bool(align_corners))
    grid = op.MatMul(op.const(places, theta.dtype), op.Transpose(theta, perm=[0, 2, 1]))
    return op.Reshape(grid, [n, *space, len(space)])
