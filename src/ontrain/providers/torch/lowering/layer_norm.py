"""Layer normalisation and its gradient: ATen's kernel, of large values piece by piece, or calls that write to places.

ATen's kernel returns new memory at each call, and has no variant that does not. Of a large value it works on so many
rows at a time that what it returns is copied to its place from the cache, and its memory serves the next piece. Where
eager PyTorch's products are taken, which ask the allocator for nothing, several calls that write where they are told
ask for nothing either; they take three times as long.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import onnx_ir as ir
import torch

from ontrain.internals import private
from ontrain.providers.torch.buffers import Buf
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.registry import attributes, lowers, lowers_composite

__all__: list[str] = []

aten = torch.ops.aten
_LARGE = 1 << 20
"""Bytes of a value above which places are planned. Below, one call beats six, what it returns stays in the process,
and the numbers are eager's to the last bit."""
_TINY = 32 << 10
"""Bytes of a gradient up to which a copy, which ATen's variant with out= makes, is quicker than views of a held one."""
_KERNEL_PIECE = 4 << 20
"""Bytes of a large value that the kernel works on at a time: what it returns is copied from the cache, and freed."""
_PIECE = 1 << 20
"""Bytes of a large value that calls on places work on at a time: they are still in the cache for the next call."""


def _factor(e: Emitter, operand: Buf, x: Buf, axis: int) -> Buf:
    """A scale or bias in the dimensions that are normalised."""
    sizes = x.shape[axis:]
    operand = e.view(operand, lambda t: t.reshape(t.shape[max(0, t.dim() - len(sizes)) :]))
    return operand if operand.shape == sizes else e.contiguous(e.view(operand, lambda t: t.expand(sizes)))


@lowers("LayerNormalization")
def layer_normalization(e: Emitter, node: ir.Node) -> None:
    inputs = [*node.inputs, None][:3]
    x, scale = e.value(inputs[0]), e.value(inputs[1])
    bias = e.value(inputs[2]) if inputs[2] is not None else None
    a = attributes(node)
    axis, eps = a.get("axis", -1) % len(x.shape), a.get("epsilon", 1e-5)
    x = e.contiguous(x)
    statistics = (*x.shape[:axis], *([1] * (len(x.shape) - axis)))
    if _varies(scale, axis, x) or (bias is not None and _varies(bias, axis, x)):
        e.compute(_rowwise_affine, x, scale, bias, axis, eps, outs=_outputs(e, node, statistics))
        return
    scale, bias = _factor(e, scale, x, axis), None if bias is None else _factor(e, bias, x, axis)
    # As rows, which is how most readers, products, take the result: they then need no view of it.
    rows, sizes = math.prod(x.shape[:axis]), x.shape[axis:]
    pin = e.pinned(node.outputs[0])
    y = e.new((rows, *sizes), x.dtype) if pin is None else e.view(pin, lambda t: t.view(rows, *sizes))
    # ONNX states the statistics in single precision; in a double graph they stay as ATen computes them.
    mean, inv_std = (e.new((rows, *([1] * len(sizes))), x.dtype) for _ in range(2))
    for value, buf in zip(node.outputs, (y, mean, inv_std), strict=False):
        e.bind(value, e.reshape(buf, (*x.shape[:axis], *buf.shape[1:])))
    x = e.reshape(x, (rows, *sizes))
    planned = _is_planned(e, x, y, 1)
    if not planned or e.settings.tuning is not None:
        for cut in _kernel_pieces(x) if planned else [(0, rows)]:
            part, *outs = (e.narrow(rows, 0, *cut) for rows in (x, y, mean, inv_std))
            e.compute(torch.native_layer_norm, part, sizes, scale, bias, eps, outs=outs, fresh=not planned)
        return
    axis = 1
    pieces, width = _pieces(x, axis), math.prod(x.shape[axis:])
    flat = [_rows(e, operand, axis) for operand in (y, mean, inv_std, x)]
    affine = [e.view(operand, lambda t: t.reshape(-1)) if operand is not None else None for operand in (scale, bias)]
    squares = e.new((pieces, width), x.dtype)
    e.run(_normalise, *flat, *affine, _number(e, eps, x), _number(e, width, x), squares, writes=[*flat[:3], squares])


def _is_planned(e: Emitter, x: Buf, y: Buf, axis: int) -> bool:
    """Whether results get their places beforehand: those of a large value of one precision on the CPU."""
    plain = e.device.type == "cpu" and x.dtype in (torch.float32, torch.float64) and y.meta.is_contiguous()
    return plain and x.meta.numel() * x.dtype.itemsize > _LARGE and math.prod(x.shape[axis:]) > 1


def _pieces(x: Buf, axis: int) -> int:
    """Rows that are worked on at a time."""
    rows, nbytes = math.prod(x.shape[:axis]), x.meta.numel() * x.dtype.itemsize
    return max(1, min(rows, rows * _PIECE // nbytes))


def _kernel_pieces(x: Buf) -> list[tuple[int, int]]:
    """Where rows of a value begin that the kernel works on at a time, and how many they are."""
    rows = x.shape[0]
    step = -(-rows // -(-x.meta.numel() * x.dtype.itemsize // _KERNEL_PIECE))
    return [(start, min(step, rows - start)) for start in range(0, rows, step)]


def _rows(e: Emitter, buf: Buf, axis: int) -> Buf:
    return e.view(buf, lambda t: t.view(math.prod(t.shape[:axis]), -1))


def _number(e: Emitter, number: float, like: Buf) -> Buf:
    """A number as a tensor: a Python number is made one, in new memory, at every call."""
    return e.constant(torch.tensor(number, dtype=like.dtype))


def _normalise(
    y: torch.Tensor, mean: torch.Tensor, inv_std: torch.Tensor, x: torch.Tensor, scale: torch.Tensor,
    bias: torch.Tensor | None, eps: torch.Tensor, width: torch.Tensor, squares: torch.Tensor,
) -> None:  # fmt: skip
    """Fill y [R, C], mean and inv_std [R, 1]; the variance is the mean of squares around the mean."""
    for y_, mean_, inv_, x_ in _in_pieces(squares.shape[0], y, mean, inv_std, x):
        squares_ = squares[: x_.shape[0]]
        torch.sum(x_, -1, keepdim=True, out=mean_).div_(width)
        torch.sub(x_, mean_, out=y_)
        torch.mul(y_, y_, out=squares_)
        torch.sum(squares_, -1, keepdim=True, out=inv_).div_(width).add_(eps).rsqrt_()
        y_.mul_(inv_)
        if bias is None:
            y_.mul_(scale)
        else:
            torch.addcmul(bias, y_, scale, out=y_)


def _in_pieces(size: int, *tensors: torch.Tensor) -> Iterator[list[torch.Tensor]]:
    """So many rows of each tensor at a time."""
    for start in range(0, tensors[0].shape[0], size):
        yield [tensor[start : start + size] for tensor in tensors]


def _varies(value: Buf, axis: int, x: Buf) -> bool:
    """Whether a scale or bias differs from row to row."""
    lead = value.shape[: max(0, len(value.shape) - len(x.shape) + axis)]
    return any(d != 1 for d in lead)


def _outputs(e: Emitter, node: ir.Node, statistics: tuple[int, ...]) -> list[Buf | None]:
    y = e.out(node.outputs[0])
    others = [e.new(statistics, y.dtype) for _ in node.outputs[1:]]
    for value, buf in zip(node.outputs[1:], others, strict=True):
        e.bind(value, buf)
    return [y, *others, *[None] * (2 - len(others))]


def _rowwise_affine(
    x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None, axis: int, eps: float
) -> tuple[torch.Tensor, ...]:
    """LayerNormalization whose scale or bias has an axis of rows, which ATen's kernel lacks."""
    y, mean, inv_std = torch.native_layer_norm(x, list(x.shape[axis:]), None, None, eps)
    y = y * scale
    return y if bias is None else y + bias, mean, inv_std


@lowers_composite("LayerNormalizationGrad")
def layer_normalization_grad(e: Emitter, node: ir.Node) -> None:
    dy, x, scale = (e.value(v) for v in node.inputs[:3])
    mean, inv_std = (e.raw(v) for v in node.inputs[3:5])
    axis = attributes(node).get("axis", -1) % len(x.shape)
    dx, dscale, dbias = (e.out(v) for v in node.outputs)
    dy, x = e.contiguous(dy), e.contiguous(x)
    # The kernel for CPUs takes a number a row, in any shape: as the forward pass holds them.
    lead = (-1,) if e.device.type == "cpu" else x.shape[:axis]
    statistics = (e.reshape(statistic, (*lead, *([1] * (len(x.shape) - axis)))) for statistic in (mean, inv_std))
    # The kernel reads them as rows that follow one another; the mean of one element is a view of x, with its steps.
    mean, inv_std = map(e.contiguous, statistics)
    width = math.prod(x.shape[axis:])
    whole = scale.meta.numel() == width and all(
        buf.meta.is_contiguous() for buf in (scale, dscale, dbias, mean, inv_std)
    )
    if not whole or mean.dtype != x.dtype or not _is_planned(e, x, dx, axis):
        # ATen gives no adjoint of a bias it is not shown, and never reads one: the scale stands in for it.
        operands = (dy, x, x.shape[axis:], mean, inv_std, scale, scale, [True, True, True])
        _backward_by_aten(e, operands, [dx, dscale, dbias])
        return
    pieces = _pieces(x, axis)
    flat = [_rows(e, operand, axis) for operand in (dx, dy, x, mean, inv_std)]
    vectors = [e.view(vector, lambda t: t.view(-1)) for vector in (dscale, dbias, scale)]
    if e.settings.tuning is not None:
        _backward_by_kernel(e, flat[0], vectors[:2], flat[1:], vectors[2])
        return
    scratch = [e.new((pieces, width), x.dtype) for _ in range(2)] + [e.new((pieces, 1), x.dtype) for _ in range(2)]
    ones = e.constant(torch.ones(pieces, dtype=x.dtype))
    e.run(_normalise_backward, flat[0], *vectors, *flat[1:], ones, _number(e, -width, x), *scratch,
          writes=[flat[0], *vectors[:2], *scratch])  # fmt: skip


def _backward_by_aten(e: Emitter, operands: tuple[Any, ...], outs: list[Buf]) -> None:
    """Emit one call of ATen's kernel, which writes into the planned places of small results."""
    kernels = private("torch.ops.aten.native_layer_norm_backward")
    dx, dscale, dbias = outs
    if dx.meta.numel() * dx.dtype.itemsize <= _TINY and dscale.dtype == dbias.dtype == dx.dtype:
        e.run(kernels.out, *operands, out0=dx, out1=dscale, out2=dbias, writes=outs)
    else:
        e.compute(kernels.default, *operands, outs=[*outs], fresh=True)


def _backward_by_kernel(e: Emitter, dx: Buf, sums: Sequence[Buf], rows: Sequence[Buf], scale: Buf) -> None:
    """ATen's kernel on some rows of (dy, x, mean, inv_std) after the others; `sums`, dscale and dbias, grow."""
    for start, count in _kernel_pieces(dx):
        part = [e.narrow(operand, 0, start, count) for operand in (dx, *rows)]
        parts = [e.new(whole.shape, whole.dtype) for whole in sums] if start else list(sums)
        # ATen gives no adjoint of a bias it is not shown, and never reads one: the scale stands in for it.
        operands = *part[1:3], dx.shape[1:], *part[3:], scale, scale, [True, True, True]
        e.compute(private("torch.ops.aten.native_layer_norm_backward").default, *operands, outs=[part[0], *parts])
        for total, summand in zip(sums if start else (), parts, strict=bool(start)):
            e.run(torch.Tensor.add_, total, summand, writes=[total])


def _normalise_backward(
    dx: torch.Tensor, dscale: torch.Tensor, dbias: torch.Tensor, scale: torch.Tensor, dy: torch.Tensor,
    x: torch.Tensor, mean: torch.Tensor, inv_std: torch.Tensor, ones: torch.Tensor, less_width: torch.Tensor,
    normal: torch.Tensor, product: torch.Tensor, first: torch.Tensor, second: torch.Tensor,
) -> None:  # fmt: skip
    """Fill dx [R, C], dscale and dbias [C] from dy and x [R, C].

    With n = (x − mean) / σ and g = dy · scale: dx = (g − mean(g) − n · mean(g · n)) / σ.
    """
    dscale.zero_()
    dbias.zero_()
    for dx_, dy_, x_, mean_, inv_ in _in_pieces(normal.shape[0], dx, dy, x, mean, inv_std):
        count = x_.shape[0]
        n, dy_n, a, b, ones_ = (t[:count] for t in (normal, product, first, second, ones))
        torch.sub(x_, mean_, out=n).mul_(inv_)
        torch.mul(dy_, n, out=dy_n)
        dscale.addmv_(dy_n.t(), ones_)
        dbias.addmv_(dy_.t(), ones_)
        torch.mv(dy_, scale, out=a[:, 0])
        torch.mv(dy_n, scale, out=b[:, 0])
        n.mul_(b.div_(less_width)).add_(a.div_(less_width))
        torch.mul(dy_, scale, out=dx_).add_(n).mul_(inv_)
