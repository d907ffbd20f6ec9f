"""Operators that onnx's evaluator (1.23) gets wrong, in plain numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference.op_run import OpRun
from onnx.reference.ops import op_loop as onnx_loop
from onnx.reference.ops.op_cum_sum import CumSum as OnnxCumSum
from onnx.reference.ops.op_max_pool import MaxPool as OnnxMaxPool

from ontrain.operators import check_divisor, divided, resolved_pads, window_counts, window_places
from ontrain.rounds import counted_rounds
from ontrain.stock_node import run_stock

__all__ = ["CORRECTIONS"]

Array = np.ndarray[Any, Any]
_EXPRESSIONS = "; expressions are written in RE2's syntax"


class GatherElements(OpRun):
    """onnx's fails with more than 64 elements."""

    def _run(self, x: Array, ids: Array, axis: int = 0) -> tuple[Array]:
        return (np.take_along_axis(x, ids, axis),)


class MaxPool(OnnxMaxPool):
    """onnx's names wrong places for windows that overlap, always counts them by rows, and finds wrong pads."""

    def _run(  # type: ignore[override]
        self, x: Array, auto_pad: str | None = None, ceil_mode: int | None = None,
        dilations: Sequence[int] | None = None, kernel_shape: Sequence[int] | None = None,
        pads: Sequence[int] | None = None, storage_order: int | None = None, strides: Sequence[int] | None = None,
    ) -> tuple[Array, ...]:  # fmt: skip
        if auto_pad not in (None, "NOTSET") and kernel_shape is not None:
            steps, gaps = list(strides or [1] * len(kernel_shape)), list(dilations or [1] * len(kernel_shape))
            spans = [(k - 1) * d + 1 for k, d in zip(kernel_shape, gaps, strict=True)]
            pads = resolved_pads(auto_pad, None, spans, x.shape[2:], steps)
            ceil_mode = ceil_mode if auto_pad == "VALID" else 0
        results: tuple[Array, ...] = self._max_pool(  # type: ignore[no-untyped-call]
            x, auto_pad="NOTSET", ceil_mode=ceil_mode, dilations=dilations, kernel_shape=kernel_shape, pads=pads,
            storage_order=0, strides=strides,
        )  # fmt: skip
        if not storage_order or len(results) == 1:
            return results
        images = int(np.prod(x.shape[:2]))
        image, *place = np.unravel_index(results[1], (images, *x.shape[2:]))
        by_column = np.ravel_multi_index([image, *place[::-1]], (images, *x.shape[:1:-1]))
        return results[0], by_column.astype(np.int64)


class AveragePool(OpRun):
    """onnx's knows no ceil_mode beside auto_pad, and divides by wrong counts where windows have gaps."""

    def _run(
        self, x: Array, auto_pad: str = "NOTSET", ceil_mode: int = 0, count_include_pad: int = 0,
        dilations: Sequence[int] | None = None, kernel_shape: Sequence[int] | None = None,
        pads: Sequence[int] | None = None, strides: Sequence[int] | None = None,
    ) -> tuple[Array]:  # fmt: skip
        assert kernel_shape is not None, "the schema asks for it"
        space, rank = x.shape[2:], len(kernel_shape)
        steps, gaps = list(strides or [1] * rank), list(dilations or [1] * rank)
        spans = [(k - 1) * d + 1 for k, d in zip(kernel_shape, gaps, strict=True)]
        margins = resolved_pads(auto_pad or "NOTSET", pads, spans, space, steps)
        places = []
        for i, (size, span, step) in enumerate(zip(space, spans, steps, strict=True)):
            room = size + margins[i] + margins[rank + i] - span
            out = (-(-room // step) if ceil_mode and not auto_pad.startswith("SAME") else room // step) + 1
            # A window that begins in the pads behind is none.
            out -= int((out - 1) * step >= size + margins[i])
            places.append(window_places(out, kernel_shape[i], step, gaps[i], margins[i]))
        y = x
        for axis, (seen, size) in enumerate(zip(places, space, strict=True), 2):
            inside = ((seen >= 0) & (seen < size)).reshape(*seen.shape, *[1] * (y.ndim - axis - 1))
            windows = np.take(y, seen.clip(0, size - 1), axis)
            y = np.where(inside, windows, 0).sum(axis + 1)
        return ((y / window_counts(places, space, margins, count_include_pad)).astype(x.dtype),)


class LRN(OpRun):
    """onnx's normalises as many channels as there are samples."""

    def _run(
        self, x: Array, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0, size: int | None = None
    ) -> tuple[Array]:
        assert size is not None, "the schema asks for it"
        # A window of an even size reaches one channel further behind than before.
        margins = [(0, 0), ((size - 1) // 2, size // 2), *[(0, 0)] * (x.ndim - 2)]
        squares = np.pad(x * x, margins)
        around = sum(squares[:, i : i + x.shape[1]] for i in range(size))
        return ((x / (bias + float(alpha) / size * around) ** float(beta)).astype(x.dtype),)


class LpNormalization(OpRun):
    """onnx's takes no absolute values for p = 1, and the first axis by default."""

    def _run(self, x: Array, axis: int = -1, p: int = 2) -> tuple[Array]:
        norm = np.linalg.norm(x, p, axis, keepdims=True)
        return (np.divide(x, norm, out=np.zeros_like(x), where=norm != 0),)


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


class CumSum(OnnxCumSum):
    """onnx's refuses an axis that is a vector of one number, which onnxruntime takes, and tf2onnx writes."""

    def _run(
        self, x: Array, axis: Array, exclusive: int | None = None, reverse: int | None = None
    ) -> tuple[Array, ...]:
        run: Any = super()._run
        results: tuple[Array, ...] = run(x, axis.reshape(()) if axis.shape == (1,) else axis, exclusive, reverse)
        return results


class Div(OpRun):
    """onnx's gives any integer for a division by zero."""

    def _run(self, x: Array, y: Array) -> tuple[Array]:
        return (divided(x, y),)


class Mod(OpRun):
    """onnx's gives any integer for a remainder by zero."""

    def _run(self, x: Array, y: Array, fmod: int = 0) -> tuple[Array]:
        if y.dtype.kind in "iu":
            check_divisor(y)
        remainder = np.fmod if fmod else np.mod
        with np.errstate(all="ignore"):
            return (remainder(x, y).astype(x.dtype),)


class Pad(OpRun):
    """onnx's takes no negative amounts, which cut rows off."""

    def _run(
        self, x: Array, pads: Array, value: Array | None = None, axes: Array | None = None, mode: str = "constant"
    ) -> tuple[Array]:
        places = range(x.ndim) if axes is None else [int(axis) % x.ndim for axis in axes]
        widths, bounds = [(0, 0)] * x.ndim, [slice(None)] * x.ndim
        for axis, before, after in zip(places, *np.split(pads, 2), strict=True):
            if x.shape[axis] + before + after < 0:
                raise ValueError(f"Pad cuts {-before - after} off axis {axis} of size {x.shape[axis]}")
            widths[axis] = max(int(before), 0), max(int(after), 0)
            bounds[axis] = slice(max(-int(before), 0), x.shape[axis] + widths[axis][0] + int(after))
        pad: Any = np.pad  # whose stubs take no mode that is a variable
        if mode == "constant":
            whole = pad(x, widths, constant_values=0 if value is None else value.item())
        else:
            whole = pad(x, widths, mode=mode)
        return (whole[tuple(bounds)],)


class RegexFullMatch(OpRun):
    """onnx's matches by Python's `re`, which has another syntax, and takes for ever over some expressions."""

    def _run(self, x: Array, pattern: str | None = None) -> tuple[Array]:
        return (run_stock("RegexFullMatch", [x], hint=_EXPRESSIONS, pattern=pattern),)


class Loop(onnx_loop.Loop):
    """onnx's joins the rows of the iterations instead of stacking them, and fails without any iteration."""

    body: Any
    _run_body: Any

    def _run(
        self, M: Array | None, cond: Array | None, *carried: Array, context: dict[str, Array] | None = None,
        body: Any = None, attributes: Any = None, bindings: Any = None,
    ) -> tuple[Array, ...]:  # fmt: skip
        states, count, rows, done = list(carried), len(carried), [], 0
        limit = np.iinfo(np.int64).max if M is None else int(np.asarray(M).item())
        alive = cond is None or bool(np.asarray(cond).item())
        with counted_rounds() as another:
            while alive and done < limit:
                another()
                arguments = [np.array(done, np.int64), np.array(True), *states]
                feeds = {**(context or {}), **dict(zip(self.body.input_names, arguments, strict=True))}
                go, *results = self._run_body(feeds, attributes=attributes)
                states, done, alive = results[:count], done + 1, bool(np.asarray(go).item())
                rows.append(results[count:])
        if rows:
            return (*states, *(np.stack(column) for column in zip(*rows, strict=True)))
        return (*states, *(_no_rows(value.type) for value in self.body.proto_.output[1 + count :]))


def _no_rows(type_: onnx.TypeProto) -> Array:
    dims = [0, *(dim.dim_value for dim in type_.tensor_type.shape.dim)]
    return np.empty(dims, ir.DataType(type_.tensor_type.elem_type).numpy())


CORRECTIONS: list[type[OpRun]] = [
    AveragePool, ConvTranspose, CumSum, Div, GatherElements, LRN, Loop, LpNormalization, MaxPool, Mod, Pad,
    RegexFullMatch,
]  # fmt: skip
