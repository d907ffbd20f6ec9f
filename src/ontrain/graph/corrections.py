"""Operators that onnx's evaluator (1.23) gets wrong, in plain numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

__all__ = ["CORRECTIONS"]

Array = np.ndarray[Any, Any]


class GatherElements(OpRun):
    """onnx's fails with more than 64 elements."""

    def _run(self, x: Array, ids: Array, axis: int = 0) -> tuple[Array]:
        return (np.take_along_axis(x, np.where(ids < 0, ids + x.shape[axis], ids), axis),)


class ConvTranspose(OpRun):
    """onnx's drops all but the first output channel of each group.

    Every input element adds its multiple of the kernel to the output: one product per kernel position.
    """

    def _run(
        self, x: Array, w: Array, b: Array | None = None, auto_pad: str = "NOTSET",
        dilations: Sequence[int] | None = None, group: int = 1, kernel_shape: Sequence[int] | None = None,
        output_padding: Sequence[int] | None = None, output_shape: Sequence[int] | None = None,
        pads: Sequence[int] | None = None, strides: Sequence[int] | None = None,
    ) -> tuple[Array]:  # fmt: skip
        rank = x.ndim - 2
        kernel, group = w.shape[2:], group or 1
        steps, gaps = list(strides or [1] * rank), list(dilations or [1] * rank)
        extra, margins = list(output_padding or [0] * rank), list(pads or [0] * (2 * rank))
        if output_shape or auto_pad not in (None, "NOTSET"):
            raise NotImplementedError("ConvTranspose with output_shape or auto_pad")
        full = [s * (n - 1) + (k - 1) * d + 1 + e
                for n, k, s, d, e in zip(x.shape[2:], kernel, steps, gaps, extra, strict=True)]  # fmt: skip
        channels = w.shape[1]
        y = np.zeros((x.shape[0], group * channels, *full), x.dtype)
        share = x.shape[1] // group
        for g in range(group):
            images, filters = x[:, g * share : (g + 1) * share], w[g * share : (g + 1) * share]
            target = y[:, g * channels : (g + 1) * channels]
            for at in np.ndindex(*kernel):
                places = tuple(
                    slice(k * d, k * d + s * (n - 1) + 1, s)
                    for k, d, s, n in zip(at, gaps, steps, x.shape[2:], strict=True)
                )
                target[(slice(None), slice(None), *places)] += np.einsum(
                    "nc...,cm->nm...", images, filters[(slice(None), slice(None), *at)]
                )
        for axis in range(rank):
            index = [slice(None)] * y.ndim
            index[2 + axis] = slice(margins[axis], y.shape[2 + axis] - margins[rank + axis])
            y = y[tuple(index)]
        return (y if b is None else y + b.reshape(1, -1, *([1] * rank)),)


CORRECTIONS: list[type[OpRun]] = [ConvTranspose, GatherElements]
