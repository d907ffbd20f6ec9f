"""Pooling over windows whose places are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.capture.aten.registry import aten
from ontrain.capture.context import AtenBuilder
from ontrain.operators import Value

__all__: list[str] = []


@aten("fractional_max_pool2d", "fractional_max_pool3d")
def fractional_max_pool(
    op: AtenBuilder, x: Value, kernel_size: Sequence[int], output_size: Sequence[int], samples: Value
) -> tuple[Value, Value]:
    """Maxima over windows whose first places ATen makes of the samples, and the places of the maxima.

    Source: Graham, Fractional max-pooling, 2014; ATen's generate_intervals.
    """
    rank = len(kernel_size)
    batched = len(op.input_shape(0)) == rank + 2
    have, want = op.input_shape(0)[-rank:], list(output_size)
    sizes = [size for size in have if isinstance(size, int)]
    if len(sizes) < rank or not all(isinstance(size, int) for size in want):
        raise op.refuse(f"fractional pooling from {have} to {want}", "windows over a size that varies are no constants",
                        "fix the size of the images")  # fmt: skip
    if not batched:  # the samples may be those of a batch
        x, samples = op.Unsqueeze(x, [0]), op.Slice(samples, [0], [1], [0])
    place: Any = None
    for axis, (size, kernel, count) in enumerate(zip(sizes, kernel_size, want, strict=True)):
        # The first sample is of the last axis for images, of the first one for volumes.
        sample = op.Gather(samples, op.const(np.array([axis if rank == 3 else 1 - axis])), axis=2)  # [N, C, 1]
        starts = _starts(op, op.cast(sample, x.dtype), size, kernel, count)
        taken = op.Unsqueeze(starts, [3]) + op.const(np.arange(kernel))  # [N, C, count, kernel]
        taken = op.Reshape(taken, [0, 0, *[1] * axis, count * kernel, *[1] * (rank - 1 - axis)])
        x = op.GatherElements(x, _along(op, taken, x, 2 + axis), axis=2 + axis)
        place = taken if place is None else place * op.const(np.array(size)) + taken
    return _maxima(op, x, place, kernel_size, want, batched)


def _starts(op: AtenBuilder, sample: Value, size: int, kernel: int, count: int) -> Value:
    """Where the windows [N, C, count] begin: ⌊(i + u) α⌋ − ⌊u α⌋, the last one at the end."""
    last = op.const(np.array([size - kernel]))
    if count == 1:
        return op.Expand(last, op.Shape(sample))
    stride = op.cast(size - kernel, sample.dtype) / op.cast(count - 1, sample.dtype)
    steps = op.cast(op.const(np.arange(count - 1)), sample.dtype)
    starts = op.Cast((steps + sample) * stride, to=ir.DataType.INT64) - op.Cast(sample * stride, to=ir.DataType.INT64)
    return op.Concat(starts, op.Expand(last, op.Shape(sample)), axis=2)


def _along(op: AtenBuilder, taken: Value, x: Value, axis: int) -> Value:
    """Places along one axis, repeated over the others of x."""
    parts = [op.Shape(x, start=0, end=axis), op.Shape(taken, start=axis, end=axis + 1)]
    if axis + 1 < len(x.shape):
        parts.append(op.Shape(x, start=axis + 1))
    return op.Expand(taken, op.Concat(*parts, axis=0))


def _maxima(
    op: AtenBuilder, x: Value, place: Value, kernel_size: Sequence[int], want: Sequence[int], batched: bool
) -> tuple[Value, Value]:
    """The greatest of each window of windows [N, C, count · kernel, …], and its place in the image."""
    rank = len(want)
    apart = [0, 0, *(size for pair in zip(want, kernel_size, strict=True) for size in pair)]
    perm = [0, 1, *range(2, 2 + 2 * rank, 2), *range(3, 3 + 2 * rank, 2)]
    windows, places = (
        op.Reshape(op.Transpose(op.Reshape(v, apart), perm=perm), [0, 0, *want, int(np.prod(kernel_size))])
        for v in (x, place)
    )
    at = op.ArgMax(windows, axis=-1, keepdims=1)
    results = [op.Squeeze(op.GatherElements(v, at, axis=-1), [-1]) for v in (windows, places)]
    y, indices = results if batched else (op.Squeeze(result, [0]) for result in results)
    return y, indices
