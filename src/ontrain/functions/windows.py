"""Windows over images beside the usual pooling: LpPool, GlobalLpPool, MaxUnpool, Col2Im, Im2Col."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.functions.interpolation import constant_of
from ontrain.functions.registry import composite, expansion
from ontrain.graph import Builder, register_inference, static_dims
from ontrain.operators import Value, operand_of

__all__: list[str] = []


def _root(op: Builder, total: Value, p: int) -> Value:
    """total^(1/p), with slope zero where the total is zero."""
    if p == 1:
        return total
    nothing = op.Equal(total, 0.0)
    safe = op.Where(nothing, 1.0, total)
    return op.Where(nothing, 0.0, op.Sqrt(safe) if p == 2 else op.Pow(safe, op.const(1 / p, total.dtype)))


def _power(op: Builder, x: Value, p: int) -> Value:
    return op.Abs(x) if p == 1 else x * x if p == 2 else op.Pow(op.Abs(x), float(p))


@expansion("LpPool")
def lp_pool(
    op: Builder, x: Value,
    *, auto_pad: str = "NOTSET", ceil_mode: int = 0, dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int] = (), p: int = 2, pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Value:  # fmt: skip
    """(Σ |x|ᵖ over each window)^(1/p), the sum as a convolution with ones, channel by channel.

    Source: https://onnx.ai/onnx/operators/onnx__LpPool.html
    """
    (n, c, *space), rank = static_dims(x), len(kernel_shape)
    steps, gaps, margins = list(strides or [1] * rank), list(dilations or [1] * rank), list(pads or [0] * (2 * rank))
    if auto_pad == "VALID":
        auto_pad, margins = "NOTSET", [0] * (2 * rank)
    counts = []
    if auto_pad == "NOTSET":
        for i, size in enumerate(space):
            span, room = (kernel_shape[i] - 1) * gaps[i] + 1, size + margins[i] + margins[rank + i]
            # Sizes are divided towards zero: an image that is too small by less than a stride has one window.
            windows = -(-(room - span) // steps[i]) + 1 if ceil_mode or room < span else (room - span) // steps[i] + 1
            windows -= (windows - 1) * steps[i] >= size + margins[i]  # none starts behind the image
            margins[rank + i] += max(0, (windows - 1) * steps[i] + span - room)
            counts.append(windows)
    if 0 in counts:
        return op.Expand(op.const(0.0, x.dtype), [n, c, *counts])
    margins_or_mode = {"pads": margins} if auto_pad == "NOTSET" else {"auto_pad": auto_pad}
    images = op.Reshape(_power(op, x, p), [n * c, 1, *space])
    ones = op.const(np.ones([1, 1, *kernel_shape]), x.dtype)
    total = op.Conv(images, ones, kernel_shape=list(kernel_shape), strides=steps, dilations=gaps, **margins_or_mode)
    return op.Reshape(_root(op, total, p), [n, c, *static_dims(total)[2:]])


@expansion("GlobalLpPool")
def global_lp_pool(op: Builder, x: Value, *, p: int = 2) -> Value:
    """(Σ |x|ᵖ over all places)^(1/p)."""
    return _root(op, op.ReduceSum(_power(op, x, p), list(range(2, len(static_dims(x)))), keepdims=1), p)


@expansion("MaxUnpool")
def max_unpool(
    op: Builder, x: Value, indices: Value, output_shape: Value | None = None,
    *, kernel_shape: Sequence[int] = (), pads: Sequence[int] | None = None, strides: Sequence[int] | None = None,
) -> Value:  # fmt: skip
    """x at the flat places that `indices` counts over the whole result, zero elsewhere.

    Source: https://onnx.ai/onnx/operators/onnx__MaxUnpool.html
    """
    (n, c, *space), rank = static_dims(x), len(kernel_shape)
    steps, margins = list(strides or [1] * rank), list(pads or [0] * (2 * rank))
    shape = [n, c, *((d - 1) * steps[i] - margins[i] - margins[rank + i] + kernel_shape[i]
                     for i, d in enumerate(space))]  # fmt: skip
    wanted = constant_of(output_shape, "its input output_shape")
    if wanted is not None:
        shape = [int(d) for d in wanted]
    zeros = op.Expand(op.const(0.0, x.dtype), [math.prod(shape)])
    placed = op.ScatterElements(zeros, op.Reshape(indices, [-1]), op.Reshape(x, [-1]), axis=0)
    return op.Reshape(placed, shape)


def _unpooled(node: ir.Node) -> list[tuple[ir.DataType, ir.Shape]]:
    """onnx's rule says nothing where the shape is an operand, not even a constant's."""
    x, wanted = node.inputs[0], operand_of(node, 2)
    assert x is not None and x.dtype is not None and x.shape is not None
    if wanted is not None:
        known = wanted.const_value
        return [(x.dtype, ir.Shape([int(d) for d in known.numpy()] if known is not None else [None] * len(x.shape)))]
    kernel = node.attributes.get_ints("kernel_shape", [])
    rank = len(kernel)
    steps, margins = (node.attributes.get_ints(k, d) for k, d in (("strides", [1] * rank), ("pads", [0] * 2 * rank)))
    space: list[Any] = []
    for i, d in enumerate(list(x.shape)[2:]):
        space.append((d - 1) * steps[i] - margins[i] - margins[rank + i] + kernel[i] if isinstance(d, int) else None)
    return [(x.dtype, ir.Shape([*list(x.shape)[:2], *space]))]


register_inference("MaxUnpool", _unpooled, "")


@expansion("Col2Im")
def col2im(
    op: Builder, x: Value, image_shape: Value, block_shape: Value,
    *, dilations: Sequence[int] | None = None, pads: Sequence[int] | None = None, strides: Sequence[int] | None = None,
) -> Value:  # fmt: skip
    """x [N, C · block, windows] added up at the places of an image that its blocks came from.

    Source: https://onnx.ai/onnx/operators/onnx__Col2Im.html
    """
    image, block = constant_of(image_shape, "its image_shape"), constant_of(block_shape, "its block_shape")
    assert image is not None and block is not None
    rank, rows, kernel = len(image), x.shape[1], [int(b) for b in block]
    assert isinstance(rows, int), "the number of channels varies"
    steps, gaps, margins = strides or [1] * rank, dilations or [1] * rank, pads or [0] * (2 * rank)
    padded = [int(d) + margins[i] + margins[rank + i] for i, d in enumerate(image)]
    counts = [(padded[i] - (kernel[i] - 1) * gaps[i] - 1) // steps[i] + 1 for i in range(rank)]
    places = np.zeros([1] * (2 * rank), np.int64)
    for i in range(rank):
        line = np.arange(kernel[i])[:, None] * gaps[i] + np.arange(counts[i]) * steps[i]
        shape = [1] * (2 * rank)
        shape[i], shape[rank + i] = line.shape
        places = places * padded[i] + line.reshape(shape)
    channels, elements = rows // math.prod(kernel), math.prod(kernel)
    parts = op.Reshape(x, [-1, elements * math.prod(counts)])
    total = op.composite("EmbeddingGrad", op.Transpose(parts, perm=[1, 0]), places.reshape(-1), rows=math.prod(padded))
    y = op.Reshape(op.Transpose(total, perm=[1, 0]), [-1, channels, *padded])
    ends = [margins[i] + int(d) for i, d in enumerate(image)]
    return op.Slice(y, list(margins[:rank]), ends, list(range(2, 2 + rank)))


def _column_types(
    inputs: list[Any], *, kernel_shape: Sequence[int] = (), dilations: Sequence[int] = (), pads: Sequence[int] = (),
    strides: Sequence[int] = (),
) -> list[tuple[ir.DataType, ir.Shape]]:  # fmt: skip
    batch, channels, *space = inputs[0].shape
    rank, windows = len(kernel_shape), 1
    for i, size in enumerate(space):
        if not isinstance(size, int):
            return [(inputs[0].dtype, ir.Shape([batch, channels * math.prod(kernel_shape), None]))]
        rest = size + pads[i] + pads[rank + i] - (kernel_shape[i] - 1) * dilations[i] - 1
        windows *= rest // strides[i] + 1
    return [(inputs[0].dtype, ir.Shape([batch, channels * math.prod(kernel_shape), windows]))]


@composite("Im2Col", infer=_column_types)
def im2col(
    op: Builder, x: Value, *, kernel_shape: Sequence[int] = (), dilations: Sequence[int] = (), pads: Sequence[int] = (),
    strides: Sequence[int] = (),
) -> Value:  # fmt: skip
    """Images [N, C, …] as their windows, in columns: [N, C · elements of a window, windows].

    Source: torch.nn.functional.unfold.
    """
    rank, channels = len(kernel_shape), x.shape[1]
    assert isinstance(channels, int), "the number of channels varies"
    if any(pads):
        x = op.Pad(x, [0, 0, *pads[:rank], 0, 0, *pads[rank:]])
    parts = []
    for place in np.ndindex(*kernel_shape):
        starts = [at * gap for at, gap in zip(place, dilations, strict=True)]
        left = [(k - 1 - at) * gap for k, at, gap in zip(kernel_shape, place, dilations, strict=True)]
        ends = [-rest if rest else 2**63 - 1 for rest in left]
        parts.append(op.Unsqueeze(op.Slice(x, starts, ends, list(range(2, 2 + rank)), list(strides)), [2]))
    stacked = op.Concat(*parts, axis=2) if len(parts) > 1 else parts[0]
    return op.Reshape(stacked, [0, channels * math.prod(kernel_shape), -1])
