"""Pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ontrain.operators.conv import pads_by_size, resolved_pads
from ontrain.operators.emit import Value
from ontrain.operators.gradients import Adjoints, Op, gradient
from ontrain.operators.record import AUTO_PAD, DOMAIN, Evaluator, Outrun, Precision, Stock, attribute_of, define
from ontrain.operators.shapes import static_dims

__all__ = ["adaptive_windows", "window_counts", "window_places"]

define("GlobalLpPool", reduces=True, evaluator=Evaluator.LACKS, stock=Stock.COMPARED, ahead_from=1 << 11)


def wide_pads(node: ir.Node) -> str:
    """What is wrong with the pads of a pool: one as wide as its window makes windows that hold no element."""
    kernel, pads = attribute_of(node, "kernel_shape"), attribute_of(node, "pads")
    if kernel and pads and any(pad >= size for pad, size in zip(pads, (*kernel, *kernel), strict=False)):
        return f"its pads are {list(pads)}, and its kernel_shape is {list(kernel)}; each pad has to be less"
    return ""


define(
    "LpPool",
    evaluator=Evaluator.IN_PART,
    choices=AUTO_PAD,
    least={"p": 1},
    fault=wide_pads,
    stock=Stock.COMPARED,
    ahead_from=1 << 11,
)
define("MaxRoiPool", evaluator=Evaluator.LACKS, outrun=Outrun.ALONE)


def _windows_of_all(node: ir.Node, shapes: Sequence[tuple[int, ...]]) -> str:
    """Whether windows and strides are stated for each dimension behind the channels."""
    rank = len(shapes[0]) - 2
    for name in ("kernel_shape", "strides"):
        stated = node.attributes.get(name)
        if stated is not None and len(stated.value) != rank:
            return f"its {name} is {list(stated.value)}, for images of {rank} dimensions"
    return ""


define("MaxUnpool", settings=(2,), misfit=_windows_of_all, outrun=Outrun.ALONE)
define(
    "RoiAlign",
    choices={"mode": ("avg", "max"), "coordinate_transformation_mode": ("half_pixel", "output_half_pixel")},
    outrun=Outrun.ALONE,
)
define("AveragePoolGrad", domain=DOMAIN)
define("MaxPoolGrad", domain=DOMAIN)


define("MaxPool", precision=Precision.FOLLOWS, choices=AUTO_PAD, fault=wide_pads, stock=Stock.KERNEL)


@gradient("MaxPool")
def max_pool(op: Op, dy: Value, x: Value, *, storage_order: int, **attributes: Any) -> Adjoints:
    """The composite MaxPoolGrad from the saved places of the maxima; places counted by columns are found anew."""
    places = op.MaxPool(x, outputs=2, **attributes)[1] if storage_order else op.saved(1)
    return op.composite("MaxPoolGrad", dy, places, shape=list(static_dims(x)))


def window_places(out: int, kernel: int, stride: int, dilation: int, before: int) -> npt.NDArray[np.int64]:
    """Return the places of an axis that each of `out` windows sees, [out, kernel]; pads before it are negative."""
    return np.arange(out)[:, None] * stride - before + np.arange(kernel) * dilation


def window_counts(
    places: Sequence[npt.NDArray[np.int64]], space: Sequence[int], pads: Sequence[int], count_include_pad: int
) -> npt.NDArray[np.int64]:
    """Return by how many elements the mean over each window divides, of the shape of the result.

    Args:
        places: of each axis.
        space: sizes of the axes.
        pads: before all axes and after them. What a window sees beyond, where `ceil_mode` rounds up, never counts.
        count_include_pad: whether pads count.
    """
    rank, counts = len(space), np.ones((), np.int64)
    for i, (seen, size) in enumerate(zip(places, space, strict=True)):
        before, after = (pads[i], pads[rank + i]) if count_include_pad else (0, 0)
        counts = counts[..., None] * ((seen >= -before) & (seen < size + after)).sum(1)
    return counts


define(
    "AveragePool", choices=AUTO_PAD, fault=wide_pads, stock=Stock.KERNEL, outrun=Outrun.ALONE,
    alone=lambda node: not pads_by_size(node),
)  # fmt: skip


@gradient("AveragePool")
def average_pool(
    op: Op, dy: Value, x: Value,
    *, kernel_shape: Sequence[int], auto_pad: str, count_include_pad: int, ceil_mode: int,
    dilations: Sequence[int] | None = None, pads: Sequence[int] | None = None, strides: Sequence[int] | None = None,
) -> Adjoints:  # fmt: skip
    """The composite AveragePoolGrad."""
    space = static_dims(x)[2:]
    strides, dilations = list(strides or [1] * len(space)), list(dilations or [1] * len(space))
    spans = [(k - 1) * d + 1 for k, d in zip(kernel_shape, dilations, strict=True)]
    return op.composite(
        "AveragePoolGrad", dy, shape=list(static_dims(x)), kernel_shape=list(kernel_shape), strides=strides,
        dilations=dilations, pads=resolved_pads(auto_pad, pads, spans, space, strides),
        count_include_pad=count_include_pad,
    )  # fmt: skip


def adaptive_windows(size: int, count: int) -> list[list[int]]:
    """Return the places of an axis that each of `count` results looks at (torch.nn.AdaptiveAvgPool1d)."""
    return [list(range(i * size // count, -(-(i + 1) * size // count))) for i in range(count)]


define("AdaptiveAveragePool", domain=DOMAIN)
define("AdaptiveAveragePoolGrad", domain=DOMAIN)


@gradient("AdaptiveAveragePool", domain=DOMAIN)
def adaptive_average_pool(op: Op, dy: Value, x: Value, *, output_size: Sequence[int]) -> Adjoints:
    """The composite AdaptiveAveragePoolGrad."""
    return op.composite("AdaptiveAveragePoolGrad", dy, shape=list(static_dims(x)), rank=len(output_size))


define("AdaptiveMaxPool", domain=DOMAIN, precision=Precision.FOLLOWS)
define("AdaptiveMaxPoolGrad", domain=DOMAIN)


@gradient("AdaptiveMaxPool", domain=DOMAIN)
def adaptive_max_pool(op: Op, dy: Value | None, x: Value, *, output_size: Sequence[int]) -> Adjoints:
    """The composite AdaptiveMaxPoolGrad, from the places of the maxima."""
    if dy is None:
        return None
    shape, rank = list(static_dims(x)), len(output_size)
    return op.composite("AdaptiveMaxPoolGrad", dy, op.saved(1), shape=shape, rank=rank)


define("GlobalAveragePool", reduces=True, stock=Stock.KERNEL)


@gradient("GlobalAveragePool")
def global_average_pool(op: Op, dy: Value, x: Value) -> Adjoints:
    """dy / n everywhere."""
    shape = static_dims(x)
    return op.Expand(dy / math.prod(shape[2:]), list(shape))


define("GlobalMaxPool", reduces=True, stock=Stock.KERNEL)


@gradient("GlobalMaxPool")
def global_max_pool(op: Op, dy: Value, x: Value) -> Adjoints:
    """dy in equal shares to the elements that attain the maximum."""
    hits = op.Cast(op.Equal(x, op.outputs[0]), to=dy.dtype)
    return hits * (dy / op.ReduceSum(hits, list(range(2, len(static_dims(x)))), keepdims=1))
