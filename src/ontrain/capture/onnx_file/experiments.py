"""Operators below opset 10 that were experiments, in operators of today."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.capture.onnx_file.site import Site

__all__ = ["EXPERIMENTS"]


def _affine(site: Site) -> None:
    site.replace(site.emit("Add", _times(site, "alpha", site.input(0), 1.0), _number(site, "beta", 0.0)))


def _scale(site: Site) -> None:
    site.replace(_times(site, "scale", site.input(0), 1.0))


def _parametric_softplus(site: Site) -> None:
    site.replace(_times(site, "alpha", site.emit("Softplus", _times(site, "beta", site.input(0)))))


def _scaled_tanh(site: Site) -> None:
    site.replace(_times(site, "alpha", site.emit("Tanh", _times(site, "beta", site.input(0)))))


def _image_scaler(site: Site) -> None:
    """Scaled images and a bias for each channel."""
    x, bias = site.input(0), site.get("bias")
    shape = _images(site)
    if shape is not None and isinstance(shape[1], int) and shape[1] != len(bias):
        raise site.refuse(f"ImageScaler has {len(bias)} biases for {shape[1]} channels")
    per_channel = _like(site, np.reshape(bias, (1, -1, 1, 1)))
    shifted = site.emit("Add", _times(site, "scale", x, 1.0), per_channel)
    site.replace(site.reshaped(shifted, x))  # more biases than channels do not fit


def _crop(site: Site) -> None:
    """Images without what `border` says is at the left, top, right and bottom, or from there on of the size `scale`."""
    x, border, size = site.input(0), site.get("border"), site.get("scale")
    _images(site)
    if len(border) != 4 or min(border) < 0:
        raise site.refuse(f"Crop has the border {list(border)}", "give four numbers of pixels, none below 0")
    if size is not None and len(size) not in (0, 2):
        raise site.refuse(f"Crop has the size {list(size)}", "give a height and a width")
    left, top, right, bottom = border
    if not size:
        site.replace(site.emit("Pad", x, site.const([0, 0, -top, -left, 0, 0, -bottom, -right])))
        return
    height, width = size
    starts, ends = site.const([top, left]), site.const([top + height, left + width])
    part = site.emit("Slice", x, starts, ends, site.const([2, 3]))
    whole = site.emit("Concat", site.emit("Shape", x, start=0, end=2), site.const([height, width]), axis=0)
    site.replace(site.emit("Reshape", part, whole))  # what reaches beyond the image does not fit


def _dynamic_slice(site: Site) -> None:
    site.replace(site.emit("Slice", *site.node.inputs))


def _mean_variance(site: Site) -> None:
    """Statistics of each channel, or of all, over the whole batch; nothing is added to a deviation of 0."""
    x = site.input(0)
    if x is not None and x.shape is not None and not 2 <= len(x.shape) <= 4:
        raise site.refuse(f"MeanVarianceNormalization of {len(x.shape)} axes", "take two to four axes, or opset 9")
    rows = site.emit("Reshape", x, site.const([0, 0, -1]))
    axes = site.const([0, 1, 2] if site.get("across_channels", 0) else [0, 2])
    centred = site.emit("Sub", rows, site.emit("ReduceMean", rows, axes))
    if site.get("normalize_variance", 1):
        variance = site.emit("ReduceMean", site.emit("Mul", centred, centred), axes)
        centred = site.emit("Div", centred, site.emit("Sqrt", variance))
    site.replace(site.reshaped(centred, x))


def _images(site: Site) -> ir.Shape | None:
    """The shape of the operand, if the file states it."""
    x = site.input(0)
    shape = None if x is None else x.shape
    if shape is not None and len(shape) != 4:
        raise site.refuse(f"{site.node.op_type} of {len(shape)} axes", "feed images [batch, channels, height, width]")
    return shape


def _like(site: Site, number: Any) -> ir.Value:
    """A constant of the operand's dtype."""
    return site.emit("CastLike", site.const(number, np.float32), site.input(0))


def _number(site: Site, name: str, default: float | None = None) -> ir.Value:
    return _like(site, site.get(name, default))


def _times(site: Site, name: str, value: ir.Value | None, default: float | None = None) -> ir.Value:
    return site.emit("Mul", value, _number(site, name, default))


EXPERIMENTS = {
    "Affine": (10, _affine),
    "Crop": (10, _crop),
    "DynamicSlice": (10, _dynamic_slice),
    "ImageScaler": (10, _image_scaler),
    "MeanVarianceNormalization": (9, _mean_variance),
    "ParametricSoftplus": (10, _parametric_softplus),
    "Scale": (10, _scale),
    "ScaledTanh": (10, _scaled_tanh),
}
"""By operator the opset in which it went, and what it becomes."""
