"""Pooling over the spatial axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.capture.aten.convolution import full
from ontrain.capture.aten.places import from_start
from ontrain.capture.aten.registry import aten
from ontrain.capture.context import AtenBuilder, Dim
from ontrain.operators import Value

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
