"""Pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from ontrain.autodiff.registry import Op, gradient
from ontrain.autodiff.rules.conv import resolved_pads
from ontrain.graph import static_dims

__all__: list[str] = []


@gradient("MaxPool")
def max_pool(op: Op, dy: ir.Value, x: ir.Value, *, storage_order: int, **attributes: Any) -> Any:
    """The composite MaxPoolGrad from the saved places of the maxima; places counted by columns are found anew."""
    places = op.MaxPool(x, outputs=2, **attributes)[1] if storage_order else op.saved(1)
    return op.composite("MaxPoolGrad", dy, places, shape=list(static_dims(x)))


@gradient("AveragePool")
def average_pool(
    op: Op, dy: ir.Value, x: ir.Value,
    *, kernel_shape: Sequence[int], auto_pad: str, count_include_pad: int, ceil_mode: int,
    dilations: Sequence[int] | None = None, pads: Sequence[int] | None = None, strides: Sequence[int] | None = None,
) -> Any:  # fmt: skip
    """The composite AveragePoolGrad."""
    space = static_dims(x)[2:]
    strides, dilations = list(strides or [1] * len(space)), list(dilations or [1] * len(space))
    spans = [(k - 1) * d + 1 for k, d in zip(kernel_shape, dilations, strict=True)]
    return op.composite(
        "AveragePoolGrad", dy, shape=list(static_dims(x)), kernel_shape=list(kernel_shape), strides=strides,
        dilations=dilations, pads=resolved_pads(auto_pad, pads, spans, space, strides),
        count_include_pad=count_include_pad,
    )  # fmt: skip


@gradient("GlobalAveragePool")
def global_average_pool(op: Op, dy: ir.Value, x: ir.Value) -> Any:
    """dy / n everywhere."""
    shape = static_dims(x)
    return op.Expand(dy / math.prod(shape[2:]), list(shape))


@gradient("GlobalMaxPool")
def global_max_pool(op: Op, dy: ir.Value, x: ir.Value) -> Any:
    """dy in equal shares to the elements that attain the maximum."""
    hits = op.Cast(op.Equal(x, op.outputs[0]), to=dy.dtype)
    return hits * (dy / op.ReduceSum(hits, list(range(2, len(static_dims(x)))), keepdims=1))
