"""Convolution and pooling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
import torch

from ontrain.graph import static_dims
from ontrain.internals import private
from ontrain.providers.torch.buffers import Buf
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.registry import attributes, lowers, lowers_composite

__all__: list[str] = []

aten = torch.ops.aten


def _pads(a: dict[str, Any], spatial: Sequence[int], kernel: Sequence[int], strides: Sequence[int],
          dilations: Sequence[int]) -> list[tuple[int, int]]:  # fmt: skip
    """(before, after) per axis, with auto_pad resolved."""
    rank, mode = len(spatial), a.get("auto_pad", "NOTSET")
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        pairs = []
        for n, k, s, d in zip(spatial, kernel, strides, dilations, strict=True):
            total = max(0, (-(-n // s) - 1) * s + (k - 1) * d + 1 - n)
            small, large = total // 2, total - total // 2
            pairs.append((small, large) if mode == "SAME_UPPER" else (large, small))
        return pairs
    given = a.get("pads") or [0] * (2 * rank)
    return list(zip(given[:rank], given[rank:], strict=True))


def _padded(e: Emitter, x: Buf, pads: list[tuple[int, int]], value: float = 0.0) -> tuple[Buf, list[int]]:
    """x and symmetric pads for ATen; an uneven pad is written out."""
    if all(before == after for before, after in pads):
        return x, [before for before, _ in pads]
    shape = [*x.shape[:2], *(n + b + c for n, (b, c) in zip(x.shape[2:], pads, strict=True))]
    out = e.new(shape, x.dtype)
    e.run(torch.Tensor.fill_, out, value, writes=[out])
    inner = out
    for i, (before, _) in enumerate(pads):
        inner = e.narrow(inner, 2 + i, before, x.shape[2 + i])
    e.run(torch.Tensor.copy_, inner, x, writes=[inner])
    return out, [0] * len(pads)


def _geometry(a: dict[str, Any], x: Buf, kernel: Sequence[int]) -> tuple[list[int], list[int], list[tuple[int, int]]]:
    rank = len(kernel)
    strides, dilations = a.get("strides") or [1] * rank, a.get("dilations") or [1] * rank
    return list(strides), list(dilations), _pads(a, x.shape[2:], kernel, strides, dilations)


@lowers("Conv")
def conv(e: Emitter, node: ir.Node) -> None:
    x, w = e.value(node.inputs[0]), e.value(node.inputs[1])
    bias = e.value(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] is not None else None
    a = attributes(node)
    strides, dilations, pads = _geometry(a, x, w.shape[2:])
    x, even = _padded(e, x, pads)
    out = e.out(node.outputs[0])
    rest = (strides, even, dilations, False, [0] * len(even), a.get("group", 1))
    # ATen's variant with out= makes a new tensor and copies it, too.
    e.compute(torch.convolution, x, w, bias, *rest, outs=[out], fresh=True)


@lowers_composite("ConvGrad")
def conv_grad(e: Emitter, node: ir.Node) -> None:
    dy, x, w = (e.value(v) for v in node.inputs[:3])
    a = attributes(node)
    strides, dilations, pads = _geometry(a, x, w.shape[2:])
    padded, even = _padded(e, x, pads)
    outs: list[Buf | None] = [e.out(v) for v in node.outputs] + [None] * (3 - len(node.outputs))
    group = a.get("group", 1)
    crop = padded is not x

    def run(dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        dx, dw, db = private("torch.ops.aten.convolution_backward")(
            dy, x, w, [w.shape[0]], strides, even, dilations, False, [0] * len(even), group, [True, True, True]
        )
        if crop:
            for i, (before, after) in enumerate(pads):
                dx = dx.narrow(2 + i, before, dx.shape[2 + i] - before - after)
        return dx, dw, db

    e.compute(run, dy, padded, w, outs=outs, fresh=True)


@lowers("ConvTranspose")
def conv_transpose(e: Emitter, node: ir.Node) -> None:
    x, w = e.value(node.inputs[0]), e.value(node.inputs[1])
    bias = e.value(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] is not None else None
    a = attributes(node)
    rank = len(w.shape) - 2
    strides, dilations = a.get("strides") or [1] * rank, a.get("dilations") or [1] * rank
    wanted = static_dims(node.outputs[0])[2:]
    before = list((a.get("pads") or [0] * rank)[:rank])
    full = [
        s * (n - 1) + (k - 1) * d + 1 for n, k, s, d in zip(x.shape[2:], w.shape[2:], strides, dilations, strict=True)
    ]
    extra = a.get("output_padding") or [0] * rank
    if a.get("output_shape") or a.get("auto_pad", "NOTSET") != "NOTSET":
        totals = [n + p - m for n, p, m in zip(full, extra, wanted, strict=True)]
        before = [t // 2 if a.get("auto_pad") == "SAME_UPPER" else t - t // 2 for t in totals]
    out = e.out(node.outputs[0])
    group = a.get("group", 1)

    def run(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        # Computed without pads and cropped: ONNX allows uneven pads and an output_shape, ATen does not.
        y: torch.Tensor = aten.convolution(x, w, None, strides, [0] * rank, dilations, True, [0] * rank, group)
        y = torch.nn.functional.pad(y, [p for n in reversed(extra) for p in (0, n)])
        for i in range(rank):
            y = y.narrow(2 + i, before[i], wanted[i])
        return y if bias is None else y + bias.view(1, -1, *([1] * rank))

    e.compute(run, x, w, bias, outs=[out], fresh=True)


@lowers("MaxPool")
def max_pool(e: Emitter, node: ir.Node) -> None:
    x = e.value(node.inputs[0])
    a = attributes(node)
    kernel = a["kernel_shape"]
    strides, dilations, pads = _geometry(a, x, kernel)
    ceil = bool(a.get("ceil_mode", 0))
    outs: list[Buf | None] = [e.out(v) for v in node.outputs] + [None] * (2 - len(node.outputs))
    pools: dict[int, Callable[..., Any]] = {
        1: _max_pool1d,
        2: aten.max_pool2d_with_indices,
        3: aten.max_pool3d_with_indices,
    }
    fn = pools[len(kernel)]
    even = [max(pair) for pair in pads]
    uneven = any(before != after for before, after in pads)
    by_columns = bool(a.get("storage_order", 0)) and len(node.outputs) > 1

    def run(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        spatial = x.shape[2:]
        if uneven:
            x = torch.nn.functional.pad(x, [p for pair in reversed(pads) for p in pair], value=float("-inf"))
        y, index = fn(x, kernel, strides, [0] * len(kernel) if uneven else even, dilations, ceil)
        if uneven:
            index = _repad(index, x.shape[2:], spatial, [before for before, _ in pads])
        if by_columns:
            index = _by_columns(index, spatial)
        # ATen's indices count within a plane, ONNX's within the tensor.
        planes = torch.arange(y.shape[0] * y.shape[1], device=y.device).view(*y.shape[:2], *([1] * len(kernel)))
        return y, index + planes * int(torch.Size(spatial).numel())

    e.compute(run, x, outs=outs, fresh=True)


def _max_pool1d(x: torch.Tensor, k: Any, s: Any, p: Any, d: Any, c: bool) -> tuple[torch.Tensor, torch.Tensor]:
    y, index = aten.max_pool2d_with_indices(x.unsqueeze(2), [1, *k], [1, *s], [0, *p], [1, *d], c)
    return y.squeeze(2), index.squeeze(2)


def _repad(index: torch.Tensor, have: Sequence[int], want: Sequence[int], before: Sequence[int]) -> torch.Tensor:
    """Indices into a padded plane as indices into the plane without the pad."""
    result, place = torch.zeros_like(index), 1
    for n, m, b in zip(reversed(have), reversed(want), reversed(before), strict=True):
        result = result + (index % n - b) * place
        index, place = index // n, place * m
    return result


def _by_columns(index: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Places in a plane counted with the first axis running fastest, of those counted with the last."""
    result, place = torch.zeros_like(index), int(torch.Size(shape).numel())
    for size in reversed(shape):
        place //= size
        result = result + (index % size) * place
        index = index // size
    return result


@lowers_composite("MaxPoolGrad")
def max_pool_grad(e: Emitter, node: ir.Node) -> None:
    dy, indices = (e.value(v) for v in node.inputs[:2])
    out = e.out(node.outputs[0])
    e.run(torch.Tensor.zero_, out, writes=[out])
    flat = e.view(out, lambda t: t.view(-1))
    e.run(torch.Tensor.scatter_add_, flat, 0, e.reshape(indices, (-1,)), e.reshape(dy, (-1,)), writes=[flat])


@lowers("AveragePool")
def average_pool(e: Emitter, node: ir.Node) -> None:
    x = e.value(node.inputs[0])
    a = attributes(node)
    kernel = a["kernel_shape"]
    strides, dilations, pads = _geometry(a, x, kernel)
    include = bool(a.get("count_include_pad", 0))
    uneven = any(before != after for before, after in pads)
    if any(d != 1 for d in dilations):
        raise ValueError("AveragePool with dilations has no kernel")
    fn = {1: torch.nn.functional.avg_pool1d, 2: torch.nn.functional.avg_pool2d, 3: torch.nn.functional.avg_pool3d}

    def run(x: torch.Tensor) -> torch.Tensor:
        if not uneven:
            even = [before for before, _ in pads]
            return fn[len(kernel)](x, kernel, strides, even, bool(a.get("ceil_mode", 0)), include)
        flat = [p for pair in reversed(pads) for p in pair]
        pool = fn[len(kernel)]
        total = pool(torch.nn.functional.pad(x, flat), kernel, strides)
        if include:
            return total
        return total / pool(torch.nn.functional.pad(torch.ones_like(x), flat), kernel, strides)

    e.compute(run, x, outs=[e.out(node.outputs[0])], fresh=True)


@lowers("GlobalAveragePool", "GlobalMaxPool")
def global_pool(e: Emitter, node: ir.Node) -> None:
    x = e.value(node.inputs[0])
    fn = torch.mean if node.op_type == "GlobalAveragePool" else torch.amax
    e.call(fn, x, list(range(2, len(x.shape))), keepdim=True, out=e.out(node.outputs[0]))
