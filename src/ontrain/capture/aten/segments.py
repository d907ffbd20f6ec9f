"""What consecutive rows have in common: reductions over segments, counts in bins and boxes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ontrain.capture.aten.registry import aten
from ontrain.capture.context import AtenBuilder
from ontrain.graph import static_dims
from ontrain.operators import Value

__all__: list[str] = []

_INT64 = ir.DataType.INT64
_END = np.iinfo(np.int64).max
_REDUCTIONS = {
    "sum": ("add", 0.0), "mean": ("add", 0.0), "prod": ("mul", 1.0), "max": ("max", -np.inf), "min": ("min", np.inf),
}  # fmt: skip
"""For each kind what a scatter does, and what it begins with."""


@aten("segment_reduce")
def segment_reduce(
    op: AtenBuilder, data: Value, reduce: str, *, lengths: Value | None = None, indices: Value | None = None,
    offsets: Value | None = None, axis: int = 0, unsafe: bool = False, initial: float | None = None,
) -> Value:  # fmt: skip
    """A scatter to the segment that each row is in; rows behind the last segment go to one that is cut off."""
    shape, want = op.input_shape(0), op.shape
    axis %= len(shape)
    if offsets is not None:
        offsets = op.cast(offsets, _INT64)
        ends = op.Slice(offsets, [1], [_END], [axis])
        lengths = ends - op.Slice(offsets, [0], [-1], [axis])
    elif lengths is not None:
        lengths = op.cast(lengths, _INT64)
        ends = op.CumSum(lengths, op.const(np.array(axis, np.int64)))
    else:
        raise op.refuse("segments by indices", "torch has no kernel for them", "give lengths or offsets")
    places = op.Unsqueeze(op.counted(shape[axis]), [-1])  # [n, 1]
    ended = op.LessOrEqual(op.Unsqueeze(ends, [axis]), places)  # […, n, segments]
    segment = op.ReduceSum(op.Cast(ended, to=_INT64), [-1], keepdims=0)
    rest = len(shape) - axis - 1
    if rest:
        segment = op.Unsqueeze(segment, list(range(axis + 1, len(shape))))
    segment = op.Expand(segment, op.Shape(data))
    how, neutral = _REDUCTIONS[reduce]
    first = op.cast(neutral if initial is None else initial, data.dtype)
    rows = [*want[:axis], want[axis] + 1, *want[axis + 1 :]]
    y = op.ScatterElements(op.Expand(first, op.sizes(rows)), segment, data, axis=axis, reduction=how)
    y = op.typed(op.Slice(y, [0], [-1], [axis]), want)
    if reduce != "mean":
        return y
    if rest:
        lengths = op.Unsqueeze(lengths, list(range(axis + 1, len(shape))))
    if initial is not None:
        lengths = op.Max(lengths, op.cast(1, _INT64))  # an empty segment keeps it
    return y / op.cast(lengths, data.dtype)


@aten("histogram.bin_ct")
def histogram(
    op: AtenBuilder, x: Value, bins: int = 100,
    *, range: Sequence[float] | None = None, weight: Value | None = None, density: bool = False,
) -> tuple[Value, Value]:  # fmt: skip
    """Counts in bins of equal width between two numbers, or between the smallest and the greatest element."""
    x = op.Reshape(x, [-1])
    edges = _edges(op, x, bins, range)
    return _counted(op, x, edges, weight, density), edges


def _edges(op: AtenBuilder, x: Value, bins: int, bounds: Sequence[float] | None) -> Value:
    if bounds is not None:
        low, high = (op.cast(float(end), x.dtype) for end in bounds)
    elif op.argument(0, "self").numel() == 0:
        low, high = op.cast(0.0, x.dtype), op.cast(1.0, x.dtype)
    else:
        low, high = op.ReduceMin(x, keepdims=0), op.ReduceMax(x, keepdims=0)
    half, flat = op.cast(0.5, x.dtype), op.Equal(low, high)
    low, high = op.Where(flat, low - half, low), op.Where(flat, high + half, high)
    step = (high - low) / op.cast(bins, x.dtype)
    # As torch.linspace has them, which counts from the nearer end.
    places = np.arange(bins + 1)
    up, down = (op.cast(op.const(p), x.dtype) for p in (places, bins - places))
    return op.Where(op.const(places < (bins + 1) // 2), low + step * up, high - step * down)


@aten("histogram.bins_tensor")
def histogram_between(
    op: AtenBuilder, x: Value, bins: Value, *, weight: Value | None = None, density: bool = False
) -> tuple[Value, Value]:
    return _counted(op, op.Reshape(x, [-1]), bins, weight, density), bins


@aten("_histogramdd_bin_edges")
def edges_of_many(
    op: AtenBuilder, x: Value, bins: Sequence[int],
    *, range: Sequence[float] | None = None, weight: Value | None = None, density: bool = False,
) -> list[Value]:  # fmt: skip
    """The ends of the bins of each side; `range` has the least and the greatest number of each in turn."""
    bounds = [None] * len(bins) if range is None else list(zip(range[::2], range[1::2], strict=True))
    return [_edges(op, *side) for side in zip(_columns(op, x, len(bins)), bins, bounds, strict=True)]


@aten("_histogramdd_from_bin_cts")
def histogram_of_many(
    op: AtenBuilder, x: Value, bins: Sequence[int],
    *, range: Sequence[float] | None = None, weight: Value | None = None, density: bool = False,
) -> Value:  # fmt: skip
    """Counts of points […, D] in boxes of D sides."""
    edges = edges_of_many(op, x, bins, range=range)
    return histogram_of_many_between(op, x, edges, weight=weight, density=density)


@aten("_histogramdd_from_bin_tensors")
def histogram_of_many_between(
    op: AtenBuilder, x: Value, bins: Sequence[Value], *, weight: Value | None = None, density: bool = False
) -> Value:
    hits = [_hits(op, column, edges) for column, edges in zip(_columns(op, x, len(bins)), bins, strict=True)]
    joint = hits[0] if weight is None else hits[0] * op.Reshape(weight, [-1, 1])  # [n, boxes of the sides so far]
    counted = [static_dims(op.Slice(edges, [1], [_END], [0]))[0] for edges in bins]
    for i, side in enumerate(hits[1:-1], 2):
        joint = op.Reshape(op.Unsqueeze(joint, [2]) * op.Unsqueeze(side, [1]), [-1, math.prod(counted[:i])])
    if len(hits) > 1:
        counts = op.MatMul(op.Transpose(joint, perm=[1, 0]), hits[-1])
    else:
        counts = op.ReduceSum(joint, [0], keepdims=0)
    counts = op.Reshape(counts, counted)
    if density:
        counts = counts / op.ReduceSum(counts, keepdims=1)
        for axis, edges in enumerate(bins):
            widths = op.Slice(edges, [1], [_END], [0]) - op.Slice(edges, [0], [-1], [0])
            counts = counts / op.Reshape(widths, [-1, *[1] * (len(bins) - 1 - axis)])
    return counts


def _columns(op: AtenBuilder, x: Value, count: int) -> list[Value]:
    points = op.Reshape(x, [-1, count])
    return [op.Squeeze(op.Slice(points, [i], [i + 1], [1]), [1]) for i in range(count)]


def _counted(op: AtenBuilder, x: Value, edges: Value, weight: Value | None, density: bool) -> Value:
    """How many elements, or how much weight, lies in each bin."""
    hits = _hits(op, x, edges)
    if weight is not None:
        hits = hits * op.Reshape(weight, [-1, 1])
    counts = op.ReduceSum(hits, [0], keepdims=0)
    widths = op.Slice(edges, [1], [_END], [0]) - op.Slice(edges, [0], [-1], [0])
    return counts / op.ReduceSum(counts, keepdims=1) / widths if density else counts


def _hits(op: AtenBuilder, x: Value, edges: Value) -> Value:
    """1 where an element lies in a bin [n, bins], else 0; the last bin has its upper edge, too."""
    x = op.Unsqueeze(x, [1])
    begins, ends = op.Slice(edges, [0], [-1], [0]), op.Slice(edges, [1], [_END], [0])
    last = op.Slice(edges, [-1], [_END], [0])
    below = op.Or(op.Less(x, ends), op.And(op.Equal(ends, last), op.Equal(x, last)))
    return op.cast(op.And(op.GreaterOrEqual(x, begins), below), edges.dtype)
