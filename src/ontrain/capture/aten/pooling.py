"""Pooling and resizing over the spatial axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from ontrain.capture.aten.convolution import full
from ontrain.capture.aten.places import from_start
from ontrain.capture.aten.precision import in_single
from ontrain.capture.aten.registry import aten
from ontrain.capture.context import AtenBuilder, Dim
from ontrain.operators import Value, affine_places

__all__: list[str] = []


def _spatial(op: AtenBuilder) -> int:
    name = str(op.node.target)
    return next(rank for rank in (1, 2, 3) if f"{rank}d" in name)


def _batched(op: AtenBuilder, x: Value, rank: int) -> tuple[Any, bool]:
    batched = len(op.input_shape(0)) == rank + 2
    return (x if batched else op.Unsqueeze(x, [0])), batched


@aten("max_pool1d", "max_pool2d", "max_pool3d", "max_pool2d_with_indices", "max_pool3d_with_indices")
def max_pool(
    op: AtenBuilder, x: Value, kernel_size: Sequence[int], stride: Sequence[int] = (), padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1, ceil_mode: bool = False,
) -> Value | tuple[Value, Value]:  # fmt: skip
    rank = _spatial(op)
    kernel = full(kernel_size, rank)
    x, batched = _batched(op, x, rank)
    # The gradient reads the indices; torch's own count within a plane, ONNX's within the whole tensor.
    y, places = op.MaxPool(
        x, kernel_shape=kernel, strides=full(stride, rank) if stride else kernel, pads=full(padding, rank) * 2,
        dilations=full(dilation, rank), ceil_mode=int(ceil_mode), outputs=2,
    )  # fmt: skip
    y = y if batched else op.Squeeze(y, [0])
    if "indices" not in str(op.node.target):
        return y
    plane = op.cast(op.count(op.input_shape(0)[-rank:]), ir.DataType.INT64)
    places = op.Mod(places, plane)
    return y, (places if batched else op.Squeeze(places, [0]))


@aten("max_unpool2d", "max_unpool3d")
def max_unpool(op: AtenBuilder, x: Value, places: Value, *_: object) -> Value:
    """x at places that count within a plane of the result, zero elsewhere."""
    rank = _spatial(op)
    before, planes = op.input_shape(0), op.input_shape(0)[:-rank]
    lines = [*planes, math.prod(before[-rank:])]
    results = [*planes, math.prod(op.shape[-rank:])]
    zeros = op.expand(op.cast(0, op.dtype), results, [])
    numbers = op.reshape(from_start(op, places), lines, before)
    y = op.ScatterElements(zeros, numbers, op.reshape(x, lines, before), axis=len(planes))
    return op.reshape(y, op.shape, results)


def _padded(
    op: AtenBuilder, x: Value, kernel: Sequence[int], strides: Sequence[int], pads: Sequence[int]
) -> Value:  # fmt: skip
    """x with zeros around it, up to the end of the last window."""
    rank, ends = len(kernel), []
    for have, want, size, step, before in zip(
        op.input_shape(0)[-rank:], op.shape[-rank:], kernel, strides, pads, strict=False
    ):
        if not isinstance(have, int) or not isinstance(want, int):
            raise op.refuse(
                "average pooling with divisor_override and ceil_mode over a size that varies",
                "the zeros behind the last window are a constant number", "fix the size",
            )  # fmt: skip
        ends.append((want - 1) * step + size - have - before)
    # A window may end before the last element does: what it leaves out is left out here.
    return op.Pad(x, [0, 0, *pads[:rank], 0, 0, *(max(end, 0) for end in ends)], op.cast(0.0, x.dtype))


@aten("avg_pool1d", "avg_pool2d", "avg_pool3d")
def avg_pool(
    op: AtenBuilder, x: Value, kernel_size: Sequence[int], stride: Sequence[int] = (), padding: int | Sequence[int] = 0,
    ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None,
) -> Value:  # fmt: skip
    rank = _spatial(op)
    kernel = full(kernel_size, rank)
    strides, pads = full(stride, rank) if stride else kernel, full(padding, rank) * 2
    x, batched = _batched(op, x, rank)
    if divisor_override is not None:
        count_include_pad = True
        if ceil_mode:
            x, pads, ceil_mode = _padded(op, x, kernel, strides, pads), [0] * (2 * rank), False
    y = op.AveragePool(
        x, kernel_shape=kernel, strides=strides, pads=pads, ceil_mode=int(ceil_mode),
        count_include_pad=int(count_include_pad),
    )  # fmt: skip
    if divisor_override is not None:
        y = y * op.cast(math.prod(kernel) / divisor_override, y.dtype)
    return y if batched else op.Squeeze(y, [0])


@aten("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "_adaptive_avg_pool2d",
      "_adaptive_avg_pool3d")  # fmt: skip
def adaptive_avg_pool(op: AtenBuilder, x: Value, output_size: Sequence[int]) -> Value:
    rank = _spatial(op)
    have, want = op.input_shape(0)[-rank:], op.shape[-rank:]
    if all(size == 1 for size in want):
        return op.ReduceMean(x, list(range(-rank, 0)), keepdims=1)
    if have == want:
        return x
    if _divides(have, want):
        return _divided(op, x, rank)
    return op.composite("AdaptiveAveragePool", x, output_size=_fixed(op, have, want))


@aten("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
def adaptive_max_pool(op: AtenBuilder, x: Value, output_size: Sequence[int]) -> tuple[Value, ...]:
    rank = _spatial(op)
    want = _fixed(op, op.input_shape(0)[-rank:], op.shape[-rank:])
    return op.composite("AdaptiveMaxPool", x, output_size=want, outputs=2)


def _divides(have: Sequence[Dim], want: Sequence[Dim]) -> bool:
    return all(isinstance(a, int) and isinstance(b, int) and a % b == 0 for a, b in zip(have, want, strict=True))


def _fixed(op: AtenBuilder, have: Sequence[Dim], want: Sequence[Dim]) -> list[int]:
    """The sizes of the result, where windows are constants."""
    for before, after in zip(have, want, strict=True):
        if not isinstance(before, int) or not isinstance(after, int):
            raise op.refuse(
                f"adaptive pooling from {before} to {after}", "windows over a size that varies are no constants",
                "pool to 1, or fix the size",
            )  # fmt: skip
    return [int(size) for size in want if isinstance(size, int)]


def _divided(op: AtenBuilder, x: Value, rank: int) -> Value:
    """Average over windows of equal size, which torch's are when the sizes divide."""
    have, want = op.input_shape(0)[-rank:], op.shape[-rank:]
    kernel = [a // b for a, b in zip(have, want, strict=True) if isinstance(a, int) and isinstance(b, int)]
    x, batched = _batched(op, x, rank)
    y = op.AveragePool(x, kernel_shape=kernel, strides=kernel)
    return y if batched else op.Squeeze(y, [0])


_UPSAMPLE = [
    "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "upsample_linear1d", "upsample_bilinear2d",
    "upsample_trilinear3d", "upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa",
]  # fmt: skip


@aten(*_UPSAMPLE)
def upsample(op: AtenBuilder, x: Value, output_size: object, *rest: Any) -> Value:
    exact = "nearest" in str(op.node.target)  # what is copied needs no precision
    return (_resized if exact else in_single(_resized))(op, x, *rest)


def _resized(op: AtenBuilder, x: Value, *rest: Any) -> Value:
    name = str(op.node.target)
    mode = "linear" if "linear" in name else "cubic" if "cubic" in name else "nearest"
    aligned = mode != "nearest" and bool(rest and rest[0])
    transform, rounding = ("align_corners" if aligned else "half_pixel"), None
    if mode == "nearest":
        # torch's exact kind takes the place floor((i + 1/2) · scale), the other floor(i · scale).
        transform, rounding = ("half_pixel", "round_prefer_ceil") if "exact" in name else ("asymmetric", "floor")
    image_mode = "bicubic" if mode == "cubic" else "bilinear"
    if aligned and "_aa" in name:
        return _weighted(op, x, image_mode, align_corners=True, antialias=True)
    factors = _factors(op, rest[0 if mode == "nearest" else 1 :], "vec" in name)
    sizes: tuple[Any, ...] = (None, None, op.sizes(op.shape))
    if factors is not None and mode == "nearest":
        return _nearest(op, x, factors, "nearest-exact" if "exact" in name else "nearest")
    if factors is not None and not aligned and x.dtype == ir.DataType.DOUBLE and _are_fixed(op):
        # Resize takes factors in single precision.
        return _weighted(op, x, image_mode, factors, antialias="_aa" in name)
    if factors is not None and not aligned:
        # A factor that was given is the scale, even where the size it makes was cut to a whole number.
        sizes = (None, op.const(np.array([1.0, 1.0, *factors], np.float32)))
    return op.Resize(
        x, *sizes, mode=mode, coordinate_transformation_mode=transform, nearest_mode=rounding,
        cubic_coeff_a=-0.75 if mode == "cubic" and "_aa" not in name else -0.5 if mode == "cubic" else None,
        antialias=1 if "_aa" in name else None, exclude_outside=1 if "_aa" in name else None,
    )  # fmt: skip


def _are_fixed(op: AtenBuilder) -> bool:
    return all(isinstance(size, int) for size in (*op.input_shape(0)[2:], *op.shape[2:]))


def _weighted(
    op: AtenBuilder, x: Value, mode: str, factors: Sequence[float] | None = None,
    *, align_corners: bool = False, antialias: bool = False,
) -> Value:  # fmt: skip
    """A product with torch's own weights for each axis.

    With aligned corners and antialias, only their distance is as Resize has it: torch takes the filter's centre for
    place i at (i + 1/2) times this distance.
    """
    if not _are_fixed(op):
        raise op.refuse("antialias=True with align_corners=True over a size that varies", "weights are constants",
                        "fix the size, or align no corners")  # fmt: skip
    last = len(op.shape) - 1
    for axis, (size, target) in enumerate(zip(op.input_shape(0)[2:], op.shape[2:], strict=True), start=2):
        assert isinstance(size, int)
        unit = torch.eye(size, dtype=torch.float64, device="cpu")[None, None]
        extent: dict[str, Any] = {"size": (target, size)}
        if factors is not None:
            extent = {"scale_factor": (factors[axis - 2], 1.0), "recompute_scale_factor": False}
        options: dict[str, Any] = {"mode": mode, "align_corners": align_corners, "antialias": antialias}
        matrix = torch.nn.functional.interpolate(unit, **extent, **options)[0, 0].numpy().astype(x.dtype.numpy())
        assert matrix.shape[0] == target, "torch makes another size of one axis"
        if axis == last - 1:
            x = op.MatMul(op.const(matrix), x)
            continue
        order = [*range(axis), *range(axis + 1, last + 1), axis]
        x = op.MatMul(x if axis == last else op.Transpose(x, perm=order), op.const(matrix.T))
        x = x if axis == last else op.Transpose(x, perm=[order.index(i) for i in range(last + 1)])
    return x


def _nearest(op: AtenBuilder, x: Value, factors: Sequence[float], mode: str) -> Value:
    """The places that torch itself takes: where a factor is no exact number, rounding decides which of two."""
    have, want = op.input_shape(0)[2:], op.shape[2:]
    for axis, (size, factor, target) in enumerate(zip(have, factors, want, strict=True)):
        if not isinstance(size, int):
            raise op.refuse("resizing by a factor over a size that varies", "the places taken are constants",
                            "give the size, or fix the dimension")  # fmt: skip
        line = torch.arange(size, dtype=torch.float32, device="cpu").reshape(1, 1, size)
        places = torch.nn.functional.interpolate(line, scale_factor=factor, mode=mode).reshape(-1)
        assert places.numel() == target, "torch makes another size of one axis"
        x = op.Gather(x, op.const(places.to(torch.int64).numpy()), axis=2 + axis)
    return x


def _factors(op: AtenBuilder, rest: Sequence[Any], vector: bool) -> list[float] | None:
    """The scale factors of the call where they differ from output size over input size."""
    factors = [f for f in (rest[0] or () if vector and rest else rest) if f is not None]
    have, want = op.input_shape(0)[2:], op.shape[2:]
    if len(factors) != len(have) or not all(isinstance(f, int | float) for f in factors):
        return None
    exact = all(
        isinstance(a, int) and isinstance(b, int) and a * f == b for a, f, b in zip(have, factors, want, strict=True)
    )
    return None if exact else [float(f) for f in factors]


@aten("grid_sampler", "grid_sampler_2d", "grid_sampler_3d")
def grid_sampler(
    op: AtenBuilder, x: Value, grid: Value, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Value:
    return op.GridSample(
        x, grid, mode=("linear", "nearest", "cubic")[interpolation_mode],
        padding_mode=("zeros", "border", "reflection")[padding_mode], align_corners=int(align_corners),
    )  # fmt: skip


@aten("affine_grid_generator")
def affine_grid(op: AtenBuilder, theta: Value, size: Sequence[Dim], align_corners: bool) -> Value:
    """A product with the places of the grid; the operator AffineGrid, of opset 20, only where the grid varies."""
    space = [n for n in size[2:] if isinstance(n, int)]
    if len(space) < len(size) - 2:
        return op.typed(op.AffineGrid(theta, op.sizes(size), align_corners=int(align_corners)), op.shape)
    places = op.const(affine_places(space, align_corners=align_corners).astype(theta.dtype.numpy()))
    grid = op.MatMul(places, op.Transpose(theta, perm=[0, 2, 1]))
    return op.reshape(grid, op.shape, [op.shape[0], math.prod(space), len(space)])


@aten("max_pool2d_with_indices_backward")
def max_pool_backward(
    op: AtenBuilder, dy: Value, x: Value, kernel_size: Sequence[int], stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int], ceil_mode: bool, indices: Value,
) -> Value:  # fmt: skip
    """dy added at the places of each plane that the indices count."""
    shape = op.shape
    if not all(isinstance(size, int) for size in shape):
        raise op.refuse("the gradient of pooling as an operator over a size that varies",
                        "its places are counted by constants", "fix the sizes")  # fmt: skip
    sizes = [int(size) for size in shape if isinstance(size, int)]
    plane = math.prod(sizes[-2:])
    planes = np.arange(math.prod(sizes[:-2])).reshape([*sizes[:-2], 1, 1]) * plane
    return op.composite("MaxPoolGrad", dy, indices + op.const(planes), shape=sizes)
