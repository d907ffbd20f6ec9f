"""Gradients of pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from ontrain.functions.registry import composite
from ontrain.graph import Builder, static_dims
from ontrain.operators import Value, window_counts, window_places

__all__: list[str] = []


def _types(inputs: list[Any], *, shape: Sequence[int] = (), **_: object) -> list[tuple[ir.DataType, ir.Shape]]:
    return [(inputs[0].dtype, ir.Shape(list(shape)))]


@composite("MaxPoolGrad", infer=_types)
def max_pool_grad(op: Builder, dy: Value, indices: Value, *, shape: Sequence[int] = ()) -> Value:
    """dy added at the places of an input of `shape` that MaxPool's second output, `indices`, counts flat."""
    zeros = op.Expand(op.const(0.0, dy.dtype), [math.prod(shape)])
    flat = op.ScatterElements(zeros, op.Reshape(indices, [-1]), op.Reshape(dy, [-1]), axis=0, reduction="add")
    return op.Reshape(flat, list(shape))


@composite("AveragePoolGrad", infer=_types)
def average_pool_grad(
    op: Builder, dy: Value,
    *, shape: Sequence[int] = (), kernel_shape: Sequence[int] = (), strides: Sequence[int] = (),
    dilations: Sequence[int] = (), pads: Sequence[int] = (), count_include_pad: int = 0,
) -> Value:  # fmt: skip
    """dy divided by each window's count and spread over its window, for an input of `shape` [N, C, …]."""
    rank = len(kernel_shape)
    out, space = static_dims(dy)[2:], list(shape)[2:]
    places = [window_places(*axis) for axis in zip(out, kernel_shape, strides, dilations, pads[:rank], strict=True)]
    counts = window_counts(places, space, pads, count_include_pad)
    images = op.Reshape(dy / op.const(counts, dy.dtype), [-1, 1, *out])
    # A lone window that reaches beyond the input finds nothing there.
    whole = [o == 1 and not before for o, before in zip(out, pads[:rank], strict=True)]
    kernel_shape = [min(k, n) if alone else k for k, n, alone in zip(kernel_shape, space, whole, strict=True)]
    ones = op.Expand(op.const(1.0, dy.dtype), [1, 1, *kernel_shape])
    full = op.ConvTranspose(images, ones, strides=strides, dilations=dilations)
    sizes, axes = static_dims(full)[2:], list(range(2, 2 + rank))
    inside = op.Slice(full, list(pads[:rank]), [pads[i] + space[i] for i in range(rank)], axes)
    missing = [max(0, pads[i] + space[i] - sizes[i]) for i in range(rank)]
    inside = op.Pad(inside, [0] * (rank + 4) + missing) if any(missing) else inside
    return op.Reshape(inside, list(shape))
