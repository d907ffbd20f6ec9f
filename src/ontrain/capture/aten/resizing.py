"""Images in another size: by torch's factors, by sizes, and at the places of a grid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from ontrain.capture.aten.precision import in_single
from ontrain.capture.aten.registry import aten
from ontrain.capture.context import AtenBuilder, Dim
from ontrain.operators import Value, affine_places, scaled_size

__all__: list[str] = []


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
    factors = None if aligned else _factors(op, rest[0 if mode == "nearest" else 1 :], "vec" in name)
    sizes: tuple[Any, ...] = (None, None, op.sizes(op.shape))
    if factors is not None and mode == "nearest":
        return _nearest(op, x, factors, "nearest-exact" if "exact" in name else "nearest")
    if factors is not None and (mode == "linear" or "_aa" in name):  # torch copies an axis whose length stays
        factors = [1.0 if a == b else f for a, b, f in zip(op.input_shape(0)[2:], op.shape[2:], factors, strict=True)]
    if factors is not None and _are_fixed(op) and not _in_single(op, x, factors):
        return _weighted(op, x, image_mode, factors, antialias="_aa" in name)
    if factors is not None:
        # A factor that was given is the scale, even where the size it makes was cut to a whole number.
        sizes = (None, op.const(np.array([1.0, 1.0, *factors], np.float32)))
    return op.Resize(
        x, *sizes, mode=mode, coordinate_transformation_mode=transform, nearest_mode=rounding,
        cubic_coeff_a=-0.75 if mode == "cubic" and "_aa" not in name else -0.5 if mode == "cubic" else None,
        antialias=1 if "_aa" in name else None, exclude_outside=1 if "_aa" in name else None,
    )  # fmt: skip


def _in_single(op: AtenBuilder, x: Value, factors: Sequence[float]) -> bool:
    """Whether Resize, which takes factors in single precision, makes the same of them as torch."""
    have, want = op.input_shape(0)[2:], op.shape[2:]
    fixed = [(a, b, f) for a, b, f in zip(have, want, factors, strict=True) if isinstance(a, int)]
    return x.dtype != ir.DataType.DOUBLE and all(scaled_size(a, f) == b for a, b, f in fixed)


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
    """The places that torch itself takes: where a factor is no exact number, rounding decides which of two.

    Which kernel runs, and so how it rounds, depends on all sizes together.
    """
    lengths = [size for size in op.input_shape(0)[2:] if isinstance(size, int)]
    if len(lengths) < len(factors):
        raise op.refuse("resizing by a factor over a size that varies", "the places taken are constants",
                        "give the size, or fix the dimension")  # fmt: skip
    for axis, (size, target) in enumerate(zip(lengths, op.shape[2:], strict=True)):
        along = torch.arange(size, dtype=torch.float32, device="cpu")
        image = along.reshape([-1 if a == axis else 1 for a in range(len(lengths))]).expand(1, 1, *lengths)
        resized = torch.nn.functional.interpolate(image.contiguous(), scale_factor=list(factors), mode=mode)
        places = resized[0, 0].movedim(axis, 0).flatten(1)[:, 0] if len(lengths) > 1 else resized[0, 0]
        assert len(places) == target, "torch makes another size of one axis"
        x = op.Gather(x, op.const(places.to(torch.int64).numpy()), axis=2 + axis)
    return x


def _factors(op: AtenBuilder, rest: Sequence[Any], vector: bool) -> list[float] | None:
    """The scale factors of the call where they differ from output size over input size."""
    factors = [f for f in (rest[0] or () if vector and rest else rest) if f is not None]
    have, want = op.input_shape(0)[2:], op.shape[2:]
    if len(factors) != len(have) or not all(isinstance(f, int | float) for f in factors):
        return None
    if all(_is_exact(a, b, f) for a, b, f in zip(have, want, factors, strict=True)):
        return None
    for a, f in zip(have, factors, strict=True):
        if not isinstance(a, int) and not _holds_for_all_sizes(f):
            raise op.refuse(f"resizing by {f} over a size that varies", "where the size stays the same, torch copies",
                            "give the size, or fix the dimension")  # fmt: skip
    return [float(f) for f in factors]


def _is_exact(have: Dim, want: Dim, factor: float) -> bool:
    """Whether a factor is output size over input size."""
    if isinstance(have, int) and isinstance(want, int):
        return have * factor == want
    return float(factor).is_integer()


def _holds_for_all_sizes(factor: float) -> bool:
    """Whether each size changes by a factor, and to the same in single as in double precision."""
    return not 1 < factor < 1.5 and (1024 * factor).is_integer()


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
