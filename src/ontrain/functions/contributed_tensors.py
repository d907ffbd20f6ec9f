"""onnxruntime's operators on matrices, images and sequences, in standard operators.

Source: onnxruntime, docs/ContribOperators.md; where it is silent, what the CPU kernels do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.functions.contributed import MICROSOFT, product_types
from ontrain.functions.contributed_types import Types, standard_types
from ontrain.functions.interpolation import constant_of
from ontrain.functions.matrices import inner_sizes
from ontrain.functions.registry import NoBodyError, composite
from ontrain.graph import Builder, static_dims
from ontrain.operators import Attribute, Value

__all__: list[str] = []


@composite("TransposeMatMul", domain=MICROSOFT, infer=product_types)
def transpose_matmul(op: Builder, a: Value, b: Value, *, alpha: float = 1.0, transA: int = 0, transB: int = 0) -> Value:
    """FusedMatMul under its first name."""
    return op.call(MICROSOFT, "FusedMatMul", [a, b], {"alpha": alpha, "transA": transA, "transB": transB})


@composite("Trilu", domain=MICROSOFT, like=[0])
def trilu(op: Builder, x: Value, k: Value | None = None, *, upper: int = 1) -> Value:
    """Trilu, which the standard took over."""
    return op.Trilu(x, k, upper=upper)


def _unique_types(inputs: Sequence[Any], **_: object) -> Types:
    (x,) = inputs
    return [(x.dtype, ir.Shape([None])), (ir.DataType.INT64, x.shape), (ir.DataType.INT64, ir.Shape([None]))]


@composite("Unique", domain=MICROSOFT, infer=_unique_types)
def unique(op: Builder, x: Value) -> tuple[Value, Value, Value]:
    """Values as they come, the place of each element's among them, and counts; the standard gives first places, too."""
    values, _, places, counts = op.Unique(x, sorted=0, outputs=4)
    return values, places, counts


@composite("GatherND", domain=MICROSOFT, infer=lambda inputs, **_: standard_types("GatherND", inputs))
def gather_nd(op: Builder, data: Value, indices: Value) -> Value:
    """GatherND, which the standard took over."""
    return op.GatherND(data, op.Cast(indices, to=ir.DataType.INT64))


def _padded_types(inputs: Sequence[Any], **_: object) -> Types:
    x, pads = inputs[:2]
    rank = len(x.shape)
    if pads.const_value is None:
        return [(x.dtype, ir.Shape([None] * rank))]
    widths = [int(n) for n in pads.const_value.numpy().reshape(-1)]
    return [(x.dtype, ir.Shape([
        d + widths[i] + widths[rank + i] if isinstance(d, int) else None for i, d in enumerate(x.shape)
    ]))]  # fmt: skip


@composite("Pad", domain=MICROSOFT, infer=_padded_types)
def pad(op: Builder, x: Value, pads: Value, value: Value | None = None, *, mode: str = "constant") -> Value:
    """Pad, which the standard took over."""
    fill = None if value is None or mode != "constant" else op.Reshape(value, [])
    return op.Pad(x, op.Reshape(pads, [-1]), fill, mode=mode)


def _range_types(inputs: Sequence[Any], **_: object) -> Types:
    present = [v for v in inputs if v is not None]
    if any(v.const_value is None for v in present):
        return [(inputs[0].dtype, ir.Shape([None]))]
    start, limit, *step = (float(v.const_value.numpy().reshape(())) for v in present)
    return [(inputs[0].dtype, ir.Shape([max(0, math.ceil((limit - start) / (step[0] if step else 1)))]))]


@composite("Range", domain=MICROSOFT, infer=_range_types)
def range_(op: Builder, start: Value, limit: Value, delta: Value | None = None) -> Value:
    """Range, whose step is one by default and whose operands may be vectors of one."""
    step = op.const(1, start.dtype) if delta is None else op.Reshape(delta, [])
    return op.Range(op.Reshape(start, []), op.Reshape(limit, []), step)


def _expanded_types(inputs: Sequence[Any], **_: object) -> Types:
    x, axis = inputs[:2]
    shape: list[Any] = [*x.shape]
    if axis.const_value is None:
        return [(x.dtype, ir.Shape([None] * (len(shape) + 1)))]
    shape.insert(int(axis.const_value.numpy().reshape(())) % (len(shape) + 1), 1)
    return [(x.dtype, ir.Shape(shape))]


@composite("ExpandDims", domain=MICROSOFT, infer=_expanded_types)
def expand_dims(op: Builder, x: Value, axis: Value) -> Value:
    """Unsqueeze by one axis."""
    number = constant_of(axis, "its input axis")
    assert number is not None
    return op.Unsqueeze(x, [int(number.reshape(()))])


@composite(
    "GridSample",
    domain=MICROSOFT,
    infer=lambda inputs, **_: [(inputs[0].dtype, ir.Shape([*list(inputs[0].shape)[:2], *list(inputs[1].shape)[1:-1]]))],
)
def grid_sample(
    op: Builder, x: Value, grid: Value, *, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: int = 0
) -> Value:
    """GridSample, which the standard took over under other names of its modes."""
    named = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    return op.GridSample(x, grid, mode=named, padding_mode=padding_mode, align_corners=align_corners)


def _cropped_types(inputs: Sequence[Any], **_: object) -> Types:
    x, regions, _, size = inputs
    lengths = [None, None] if size.const_value is None else [int(n) for n in size.const_value.numpy()]
    return [(x.dtype, ir.Shape([regions.shape[0], x.shape[1], *lengths]))]


@composite("CropAndResize", domain=MICROSOFT, infer=_cropped_types)
def crop_and_resize(
    op: Builder, x: Value, regions: Value, images: Value, size: Value,
    *, mode: str = "bilinear", extrapolation_value: float = 0.0,
) -> Value:  # fmt: skip
    """Regions [R, 4] of images, each from (y₁, x₁) to (y₂, x₂) of the unit square, resized to one size."""
    lengths = constant_of(size, "its input crop_size")
    assert lengths is not None
    count, space = static_dims(regions)[0], static_dims(x)[2:]
    places, outside = [], []
    for axis, (n, m) in enumerate(zip(space, (int(n) for n in lengths), strict=True)):
        first, last = (op.Slice(regions, [i], [i + 1], [1]) for i in (axis, axis + 2))  # [R, 1]
        share = np.arange(m) / (m - 1) if m > 1 else np.array([0.5])
        at = (first + (last - first) * op.const(share[None], x.dtype)) * float(n - 1)  # [R, m]
        shape = [count, m, 1] if axis == 0 else [count, 1, m]
        outside.append(op.Reshape(op.Or(op.Less(at, 0.0), op.Greater(at, float(n - 1))), shape))
        places.append(op.Reshape(at * (2 / max(n - 1, 1)) - 1.0, shape))
    whole = [count, *(int(n) for n in lengths)]
    grid = op.Concat(*(op.Expand(op.Unsqueeze(p, [3]), [*whole, 1]) for p in reversed(places)), axis=3)
    named = "linear" if mode == "bilinear" else "nearest"
    picked = op.GridSample(op.Gather(x, images), grid, mode=named, padding_mode="border", align_corners=1)
    return op.Where(op.Unsqueeze(op.Or(*outside), [1]), op.const(extrapolation_value, x.dtype), picked)


@composite(
    "CDist",
    domain=MICROSOFT,
    infer=lambda inputs, **_: [(inputs[0].dtype, ir.Shape([inputs[0].shape[0], inputs[1].shape[0]]))],
)
def cdist(op: Builder, a: Value, b: Value, *, metric: str = "sqeuclidean") -> Value:
    """Distances of each row of a to each row of b, or their squares."""
    if metric not in ("euclidean", "sqeuclidean"):
        raise NoBodyError(f"the metric {metric!r}", "use 'euclidean' or 'sqeuclidean'")
    apart = op.Unsqueeze(a, [1]) - op.Unsqueeze(b, [0])
    squares = op.ReduceSum(apart * apart, [2], keepdims=0)
    return op.Sqrt(squares) if metric == "euclidean" else squares


@composite("Inverse", domain=MICROSOFT, like=[0])
def inverse(op: Builder, x: Value) -> Value:
    """Gauss–Jordan elimination beside a unit matrix; in each column the largest element left is taken as pivot."""
    n, _ = inner_sizes(x)
    rows = np.arange(n)
    table = op.Concat(x, op.Expand(op.const(np.eye(n), x.dtype), op.shape_of(x)), axis=-1)
    for column in range(n):
        here = op.const((rows == column)[:, None])
        values = op.Slice(table, [column], [column + 1], [-1])  # […, n, 1]
        sizes = op.Where(op.const((rows < column)[:, None]), op.const(-1.0, x.dtype), op.Abs(values))
        chosen = op.Equal(op.ArgMax(sizes, axis=-2, keepdims=1), op.const(rows[:, None]))
        pivot = op.ReduceSum(op.Where(chosen, table, op.const(0.0, x.dtype)), [-2], keepdims=1)
        table = op.Where(here, pivot, op.Where(chosen, op.Slice(table, [column], [column + 1], [-2]), table))
        row = pivot / op.Slice(pivot, [column], [column + 1], [-1])
        table = op.Where(here, row, table - op.Slice(table, [column], [column + 1], [-1]) * row)
    return op.Slice(table, [n], [2 * n], [-1])


@composite(
    "LinearAttention",
    domain=MICROSOFT,
    infer=lambda inputs, state_window=0, **a: standard_types("LinearAttention", inputs, 2, **a),
)
def linear_attention(
    op: Builder, query: Value, key: Value, value: Value, past: Value | None = None, decay: Value | None = None,
    beta: Value | None = None,
    *, state_window: int = 0, **attributes: Attribute,
) -> tuple[Value, ...]:  # fmt: skip
    """LinearAttention, which the standard took over."""
    if state_window:
        raise NoBodyError("a window of states", "use CPUExecutionProvider")
    return op.call("", "LinearAttention", [query, key, value, past, decay, beta], attributes, 2)


@composite(
    "CausalConvWithState",
    domain=MICROSOFT,
    infer=lambda inputs, activation="none", **_: standard_types(
        "CausalConvWithState", inputs, 2, activation=activation
    ),
)
def causal_conv(
    op: Builder, x: Value, weight: Value, bias: Value | None = None, past: Value | None = None,
    *, activation: str = "none", ndim: int = 1, channels_last: int = 0, dilation: int = 1, state_window: int = 0,
) -> tuple[Value, ...]:  # fmt: skip
    """CausalConvWithState, which the standard took over for one dimension."""
    if ndim != 1 or channels_last or dilation != 1 or state_window:
        raise NoBodyError("this form of a causal convolution", "use CPUExecutionProvider")
    return op.call("", "CausalConvWithState", [x, weight, bias, past], {"activation": activation}, 2)
