"""Images in another size, over their last two axes, as torch's kernels make them; and what flows back.

Legend: N images, C channels, H × W pixels of x, h × w of the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import onnx_ir as ir

from ontrain.functions.interpolation import along, repeated, weights_between
from ontrain.functions.registry import composite
from ontrain.graph import Builder, static_dims
from ontrain.operators import Value

__all__ = ["RESIZE_WAYS"]

Mode = Literal["nearest", "linear", "aligned", "cubic", "cubic aligned"]
RESIZE_WAYS = {
    "nearest": ("nearest", "asymmetric"), "linear": ("linear", "half_pixel"), "aligned": ("linear", "align_corners"),
    "cubic": ("cubic", "half_pixel"), "cubic aligned": ("cubic", "align_corners"),
}  # fmt: skip
"""What Resize calls the modes, and how it finds places in them."""


def _types(inputs: Sequence[Any], *, size: Sequence[int] = (), **_: object) -> list[tuple[ir.DataType, ir.Shape]]:
    return [(inputs[0].dtype, ir.Shape([*list(inputs[0].shape)[:2], *size]))]


@composite("Interpolate", infer=_types)
def interpolate(op: Builder, x: Value, *, size: Sequence[int] = (), mode: Mode = "nearest") -> Value:
    """x [N, C, H, W] in a size [h, w].

    The mode "nearest" repeats each pixel, and the size is a multiple. "linear" is bilinear between the middles of
    pixels, "aligned" between corners that stay corners. "cubic" and "cubic aligned" are bicubic likewise, by the kernel
    of Keys (1981) with the coefficient -0.75.

    Source: torch.nn.functional.interpolate.
    """
    for axis, length in enumerate(size, 2):
        have = static_dims(x)[axis]
        if mode == "nearest":
            x = x if length == have else repeated(op, x, axis, length // have)
        elif (have, length) != (1, 1):
            x = along(op, x, axis, weights_between(have, length, *RESIZE_WAYS[mode]))
    return op.Identity(x)


@composite("InterpolateGrad", infer=_types)
def interpolate_grad(op: Builder, dy: Value, *, size: Sequence[int] = (), mode: Mode = "nearest") -> Value:
    """The adjoint of x from that of the result, dy [N, C, h, w]; `size` is x's, [H, W]."""
    for axis, length in enumerate(size, 2):
        shape = list(static_dims(dy))
        if mode == "nearest":
            apart = op.Reshape(dy, [*shape[:axis], length, shape[axis] // length, *shape[axis + 1 :]])
            dy = op.ReduceSum(apart, [axis + 1], keepdims=0)
        else:
            weights = weights_between(length, shape[axis], *RESIZE_WAYS[mode])
            dy = along(op, dy, axis, np.ascontiguousarray(weights.T))
    return dy
