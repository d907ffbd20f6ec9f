"""Images resampled, and boxes in them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.operators.agreement import operand_of
from ontrain.operators.emit import Value
from ontrain.operators.gradients import Adjoints, Op, gradient
from ontrain.operators.record import DOMAIN, Evaluator, Outrun, Size, Stock, define
from ontrain.operators.shapes import static_dims

__all__ = ["affine_places", "scaled_size"]


def _ahead_at_places(node: ir.Node) -> float:
    """Onnxruntime takes few numbers in hand only where it weights four neighbours, and none beyond the image."""
    is_plain = node.attributes.get_string("mode", "linear") in ("linear", "bilinear")
    return 1 << 13 if is_plain and node.attributes.get_string("padding_mode", "zeros") == "zeros" else 1 << 11


define("AffineGrid", settings=(1,), stock=Stock.COMPARED)
define(
    "GridSample",
    evaluator=Evaluator.IN_PART,
    choices={
        "mode": ("linear", "cubic", "nearest", "bilinear", "bicubic"),
        "padding_mode": ("zeros", "border", "reflection"),
    },
    stock=Stock.COMPARED,
    ahead_from=_ahead_at_places,
)


def scaled_size(size: int, factor: float) -> int:
    """Return how long an axis is after a Resize, as onnxruntime has it: the product is rounded to float32 first.

    So 6 · 0.8333333 is 5, where onnx's inference of shapes says 4.
    """
    return math.floor(np.float32(size) * np.float32(factor))


def _resized(node: ir.Node, shape: Sequence[Size]) -> list[Size] | None:
    """The shape of the result by scales that are known."""
    scales, x = operand_of(node, 2), node.inputs[0]
    if scales is None or scales.const_value is None or not scales.const_value.size or x is None or x.shape is None:
        return None
    before = x.shape
    axes = node.attributes["axes"].as_ints() if "axes" in node.attributes else range(len(before))
    lengths = list(shape)
    for axis, factor in zip(axes, scales.const_value.numpy(), strict=True):
        size = before[axis]
        if isinstance(size, int):
            lengths[axis] = scaled_size(size, float(factor))
    return lengths


define("GridSampleGrad", domain=DOMAIN)
define("ImageDecoder", no_gradient="it decodes bytes")
_ALIKE = {("nearest", "asymmetric"), *product(("linear", "cubic"), ("half_pixel", "align_corners"))}
"""Modes and transformations of a Resize of images whose results are onnxruntime's."""


def _as_onnxruntime(node: ir.Node) -> Stock:
    ways = node.attributes
    mode = ways.get_string("mode", "nearest")
    transformation = ways.get_string("coordinate_transformation_mode", "half_pixel")
    alike = (mode, transformation) in _ALIKE and not ways.get_int("antialias", 0)
    return Stock.KERNEL if alike else Stock.COMPARED


def _ahead_at(node: ir.Node) -> float:
    """Onnxruntime makes a cubic pixel of sixteen others in turn."""
    return 1 << 11 if str(node.attributes.get_string("mode", "nearest")).startswith("cubic") else math.inf


def _is_stocks(node: ir.Node) -> bool:
    return _as_onnxruntime(node) is Stock.KERNEL and math.isinf(_ahead_at(node))


define(
    "NonMaxSuppression", settings=(2,), weightless=(0, 1, 3, 4), zero_gradient="its results are whole numbers",
    stock=Stock.COMPARED,
)  # fmt: skip
define(
    "Resize",
    settings=(1, 2, 3),
    loops=True,
    resized=_resized,
    choices={
        "mode": ("nearest", "linear", "cubic"),
        "coordinate_transformation_mode": (
            "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
            "tf_half_pixel_for_nn", "tf_crop_and_resize",
        ),
        "keep_aspect_ratio_policy": ("stretch", "not_larger", "not_smaller"),
    },
    stock=Stock.COMPARED,
    forms=_as_onnxruntime,
    outrun=Outrun.ALONE,
    alone=_is_stocks,
    ahead_from=_ahead_at,
)  # fmt: skip
define("Interpolate", domain=DOMAIN, stock=Stock.BODY, ahead_from=_ahead_at)
define("InterpolateGrad", domain=DOMAIN)
define(
    "Upsample",
    settings=(1,),
    no_gradient="the standard has withdrawn it",
    choices={"mode": ("nearest", "linear", "bilinear", "cubic")},
)


@gradient("GridSample")
def grid_sample(
    op: Op, dy: Value, x: Value, grid: Value, *, align_corners: int, mode: str, padding_mode: str
) -> Any:  # fmt: skip
    """The composite GridSampleGrad where neighbours are weighted linearly; else through the body."""
    if mode not in ("linear", "bilinear"):
        return NotImplemented
    return op.composite(
        "GridSampleGrad", dy, x, grid, align_corners=align_corners, padding_mode=padding_mode, outputs=2
    )


@gradient("Interpolate", domain=DOMAIN)
def interpolate(op: Op, dy: Value, x: Value, *, size: Sequence[int], mode: str) -> Adjoints:
    """The composite InterpolateGrad."""
    return op.composite("InterpolateGrad", dy, size=list(static_dims(x)[2:]), mode=mode)


@gradient("InterpolateGrad", domain=DOMAIN)
def interpolate_grad(op: Op, ddy: Value, dy: Value, *, size: Sequence[int], mode: str) -> Adjoints:
    """Interpolate, of which it is the adjoint."""
    return op.composite("Interpolate", ddy, size=list(static_dims(dy)[2:]), mode=mode)


def affine_places(space: Sequence[int], *, align_corners: bool) -> np.ndarray[Any, Any]:
    """Return the places of a grid in [−1, 1]ʳ, the last axis of `space` first, and a one behind: [places, r + 1]."""
    lines = [_line(size, align_corners) for size in space]
    return np.stack([*np.meshgrid(*lines, indexing="ij")[::-1], np.ones(space)], -1).reshape(-1, len(space) + 1)


def _line(size: int, align_corners: bool) -> np.ndarray[Any, Any]:
    if align_corners:
        return np.linspace(-1, 1, size) if size > 1 else np.zeros(1)
    return (2 * np.arange(size) + 1) / size - 1
