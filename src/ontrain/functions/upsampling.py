"""Images in another size, over their last two axes, as torch's kernels make them; and what flows back.

Legend: N images, C channels, H × W pixels of x, h × w of the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import onnx_ir as ir

from ontrain.functions.interpolation import along, check_table
from ontrain.functions.registry import composite
from ontrain.graph import Builder, static_dims
from ontrain.operators import Value

__all__: list[str] = []

Array = np.ndarray[Any, Any]
Mode = Literal["nearest", "linear", "aligned"]


def _types(inputs: Sequence[Any], *, size: Sequence[int] = (), **_: object) -> list[tuple[ir.DataType, ir.Shape]]:
    return [(inputs[0].dtype, ir.Shape([*list(inputs[0].shape)[:2], *size]))]


@composite("Interpolate", infer=_types)
def interpolate(op: Builder, x: Value, *, size: Sequence[int] = (), mode: Mode = "nearest") -> Value:
    """x [N, C, H, W] in a size [h, w].

    The mode "nearest" repeats each pixel, and the size is a multiple. "linear" is bilinear between the middles of
    pixels, "aligned" between corners that stay corners.

    Source: torch.nn.functional.interpolate.
    """
    for axis, length in enumerate(size, 2):
        have = static_dims(x)[axis]
        if mode == "nearest":
            x = _repeated(op, x, axis, length // have)
        elif (have, length) != (1, 1):
            x = along(op, x, axis, _weights(have, length, mode))
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
            dy = along(op, dy, axis, np.ascontiguousarray(_weights(length, shape[axis], mode).T))
    return dy


def _repeated(op: Builder, x: Value, axis: int, times: int) -> Value:
    shape = list(static_dims(x))
    if times == 1:
        return x
    repeated = op.Expand(op.Unsqueeze(x, [axis + 1]), [*shape[: axis + 1], times, *shape[axis + 1 :]])
    return op.Reshape(repeated, [*shape[:axis], shape[axis] * times, *shape[axis + 1 :]])


def _weights(n: int, m: int, mode: Mode) -> Array:
    """How much of each of n pixels is in each of m: [m, n].

    Raises:
        NoBodyError: the table is too large.
    """
    check_table(m, n, "Interpolate")
    places = np.arange(m, dtype=np.float64)
    places = places * (n - 1) / max(m - 1, 1) if mode == "aligned" else (places + 0.5) * n / m - 0.5
    places = np.clip(places, 0, n - 1)
    low = np.floor(places).astype(np.int64)
    rows, matrix = np.arange(m), np.zeros((m, n))
    np.add.at(matrix, (rows, low), 1 - (places - low))
    np.add.at(matrix, (rows, np.minimum(low + 1, n - 1)), places - low)
    return matrix
