"""Convolutions, pools, Pad, and what samples images."""

from __future__ import annotations

import numpy as np

from tests.drawn.draw import Draw
from tests.drawn.nodes.node import Node, attributes, node

CROP = "tf_crop_and_resize"
PLACES = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric", CROP]
AUTOMATIC = ["SAME_UPPER", "SAME_LOWER", "VALID"]


@node.share(4)
def resize(draw: Draw) -> Node:
    """By factors and to sizes, in each mode and with each rule of places."""
    sizes = draw.sizes(draw.choice([1, 2, 2, 3]), 2, 6)
    mode = draw.choice(["nearest", "linear", *(["cubic"] if len(sizes) == 2 else [])])
    places, cubic = draw.choice(PLACES), mode == "cubic"
    settings = attributes(
        mode=mode, coordinate_transformation_mode=places,
        nearest_mode=draw.choice(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
        if mode == "nearest" else None,
        cubic_coeff_a=draw.maybe(-0.5) if cubic else None, exclude_outside=draw.maybe(1) if cubic else None,
        extrapolation_value=draw.maybe(2.5),
        antialias=draw.maybe(1, 0.3) if mode != "nearest" and places != CROP else None,
    )  # fmt: skip
    image, region = draw.array(1, 2, *sizes), _region(draw, sizes) if places == CROP else None
    if draw.flag():
        factors = [draw.choice([0.5, 2, 1.5, 0.6, 2.3, 1.1]) for _ in sizes]
        return Node("Resize", [image, region, np.array([1, 1, *factors], np.float32)], settings, opset=19)
    if draw.flag(0.3):
        settings["keep_aspect_ratio_policy"] = draw.choice(["stretch", "not_larger", "not_smaller"])
    target = np.array([1, 2, *draw.sizes(len(sizes), 1, 9)])
    return Node("Resize", [image, region, None, target], settings, opset=19)


def _region(draw: Draw, sizes: tuple[int, ...]) -> np.ndarray:
    """From where to where is cut out, in shares of the sizes."""
    starts, ends = [draw.fraction(0, 0.4) for _ in sizes], [draw.fraction(0.6, 1) for _ in sizes]
    return np.array([0, 0, *starts, 1, 1, *ends], np.float32)


@node.share(3)
def convolution(draw: Draw) -> Node:
    """In groups, with strides, dilations and each kind of padding."""
    rank, groups = draw.integer(1, 3), draw.choice([1, 2])
    channels, outputs = 2 * groups, groups * draw.integer(1, 3)
    automatic = draw.maybe(draw.choice(AUTOMATIC), 0.4)
    # Stock refuses dilation with SAME padding.
    settings = attributes(
        group=groups, strides=draw.maybe(draw.sizes(rank, 1, 3)), auto_pad=automatic,
        dilations=draw.maybe(draw.sizes(rank, 1, 2)) if automatic in (None, "VALID") else None,
        pads=draw.maybe(draw.sizes(2 * rank, 0, 2)) if automatic is None else None,
    )  # fmt: skip
    image, kernel = draw.array(2, channels, *draw.sizes(rank, 5, 8)), draw.sizes(rank, 1, 3)
    weight, bias = draw.array(outputs, channels // groups, *kernel), draw.maybe(draw.array(outputs))
    return Node("Conv", [image, weight, bias], settings)


@node.share(3)
def transposed_convolution(draw: Draw) -> Node:
    """In groups, with padding that is stated, automatic, or of the output."""
    rank, groups = draw.integer(1, 2), draw.choice([1, 2])
    strides = draw.sizes(rank, 1, 3)
    settings = attributes(group=groups, strides=strides, dilations=draw.maybe(draw.sizes(rank, 1, 2)))
    padding = draw.choice([None, "auto_pad", "pads", "output_padding"])
    if padding == "auto_pad":
        settings["auto_pad"] = draw.choice(AUTOMATIC)
    elif padding == "pads":
        settings["pads"] = draw.sizes(2 * rank, 0, 1)
    elif padding == "output_padding":
        settings["output_padding"] = [draw.integer(0, stride - 1) for stride in strides]
    weight = draw.array(2 * groups, draw.integer(1, 3), *draw.sizes(rank, 1, 4))
    return Node("ConvTranspose", [draw.array(2, 2 * groups, *draw.sizes(rank, 4, 6)), weight], settings)


@node.share(4)
def pool(draw: Draw) -> Node:
    """MaxPool, AveragePool and LpPool."""
    rank, op_type = draw.integer(1, 3), draw.choice(["MaxPool", "AveragePool", "LpPool"])
    kernel, largest = draw.sizes(rank, 1, 4), op_type == "MaxPool"
    settings = attributes(
        kernel_shape=kernel, strides=draw.maybe(draw.sizes(rank, 1, 3)),
        ceil_mode=draw.maybe(1), count_include_pad=draw.maybe(1) if op_type == "AveragePool" else None,
        p=draw.integer(1, 3) if op_type == "LpPool" else None, storage_order=draw.maybe(1, 0.3) if largest else None,
    )  # fmt: skip
    padding = draw.choice([None, "auto_pad", "pads"])
    if padding == "auto_pad":
        settings["auto_pad"] = draw.choice(AUTOMATIC)
    elif padding == "pads":
        begins = [draw.integer(0, size - 1) for size in kernel]
        settings["pads"] = begins + draw.choice([begins, [draw.integer(0, size - 1) for size in kernel]])
    # With dilation, stock's shapes of SAME padding are not the standard's.
    if not settings.get("auto_pad", "").startswith("SAME") and draw.flag():
        settings["dilations"] = draw.sizes(rank, 1, 2)
    outputs, opset = 2 if largest and draw.flag() else 1, 18 if op_type == "LpPool" else 19
    return Node(op_type, [draw.array(2, 2, *draw.sizes(rank, 7, 9))], settings, outputs, opset)


@node.share(2)
def pad(draw: Draw) -> Node:
    """In each mode; a negative width cuts off."""
    rank, mode = draw.integer(1, 4), draw.choice(["constant", "reflect", "edge", "wrap"])
    widths = np.array(draw.sizes(2 * rank, -1 if mode == "constant" else 0, 2))
    number = draw.maybe(np.float32(1.5))
    return Node("Pad", [draw.array(*draw.sizes(rank, 3, 5)), widths, number], dict(mode=mode), opset=19)


@node
def grid_sample(draw: Draw) -> Node:
    """At places inside and outside of the image."""
    settings = dict(
        mode=draw.choice(["linear", "nearest", "cubic"]), padding_mode=draw.choice(["zeros", "border", "reflection"]),
        align_corners=draw.choice([0, 1]),
    )  # fmt: skip
    grid = draw.uniform(2, 3, 2, 2).numpy().astype(np.float32) * 3 - 1.5
    return Node("GridSample", [draw.array(2, 3, 4, 5), grid], settings, opset=20)


@node
def regions(draw: Draw) -> Node:
    """RoiAlign of two regions."""
    settings = dict(
        output_height=draw.integer(1, 3), output_width=draw.integer(1, 3), sampling_ratio=draw.choice([0, 2]),
        spatial_scale=draw.choice([1.0, 0.5]), mode=draw.choice(["avg", "max"]),
        coordinate_transformation_mode=draw.choice(["half_pixel", "output_half_pixel"]),
    )  # fmt: skip
    corners = np.array([[0, 0, 3, 3], [1, 0.5, 4, 2.5]], np.float32)
    return Node("RoiAlign", [draw.array(2, 3, 4, 5), corners, np.array([0, 1])], settings, opset=16)
