"""Normalisations and their gradients."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import torch
from torch.nn import functional

from ontrain.providers.torch.buffers import Buf
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.registry import attributes, lowers, lowers_composite

__all__: list[str] = []

aten = torch.ops.aten
_PIECE = 1 << 20
"""Bytes of a large value that a normalisation works on at a time."""


@lowers("LayerNormalization")
def layer_normalization(e: Emitter, node: ir.Node) -> None:
    inputs = [*node.inputs, None][:3]
    x, scale = e.value(inputs[0]), e.value(inputs[1])
    bias = e.value(inputs[2]) if inputs[2] is not None else None
    a = attributes(node)
    axis = a.get("axis", -1) % len(x.shape)
    x = e.contiguous(x)
    varying = _varies(scale, axis, x) or (bias is not None and _varies(bias, axis, x))
    if varying:
        statistics = (*x.shape[:axis], *([1] * (len(x.shape) - axis)))
        e.compute(_rowwise_affine, x, scale, bias, axis, a.get("epsilon", 1e-5), outs=_outputs(e, node, statistics))
        return
    scale = e.view(scale, lambda t: t.reshape(t.shape[max(0, t.dim() - len(x.shape) + axis) :]))
    if bias is not None:
        bias = e.view(bias, lambda t: t.reshape(t.shape[max(0, t.dim() - len(x.shape) + axis) :]))
    if scale.shape != x.shape[axis:]:
        scale = e.contiguous(e.view(scale, lambda t: t.expand(x.shape[axis:])))
        bias = e.contiguous(e.view(bias, lambda t: t.expand(x.shape[axis:]))) if bias is not None else None
    statistics = (*x.shape[:axis], *([1] * (len(x.shape) - axis)))
    y = e.out(node.outputs[0])
    # ONNX states the statistics in single precision; in a double graph they stay as ATen computes them.
    mean, inv_std = e.new(statistics, x.dtype), e.new(statistics, x.dtype)
    for value, buf in zip(node.outputs[1:], (mean, inv_std), strict=False):
        e.bind(value, buf)
    # ATen's variant with out= computes new tensors and copies them, too.
    for rows in _pieces(e, x, y, axis=axis):
        outs: list[Buf | None] = [rows(y), rows(mean), rows(inv_std)]
        e.compute(torch.native_layer_norm, rows(x), x.shape[axis:], scale, bias, a.get("epsilon", 1e-5), outs=outs,
                  fresh=True)  # fmt: skip


def _pieces(e: Emitter, *like: Buf, axis: int) -> list[Callable[[Buf], Buf]]:
    """Functions that take a piece of the rows of a value: several for large ones on the CPU, else the whole.

    What a kernel returns is new memory. The C library returns a lot of it to the system at once, so that the next call
    pays a page fault for each page; a little is handed out again, and is copied while it is in the cache. Each row's
    numbers are the same in any piece.
    """
    x = like[0]
    rows, nbytes = math.prod(x.shape[:axis]), x.meta.numel() * x.dtype.itemsize
    if e.device.type != "cpu" or nbytes <= 2 * _PIECE or not all(one.meta.is_contiguous() for one in like):
        return [lambda buf: buf]
    step = max(1, rows * _PIECE // nbytes)

    def piece(buf: Buf, start: int) -> Buf:
        flat = e.view(buf, lambda t: t.view(rows, *t.shape[axis:]))
        return e.narrow(flat, 0, start, min(step, rows - start))

    return [functools.partial(piece, start=start) for start in range(0, rows, step)]


def _varies(value: Buf, axis: int, x: Buf) -> bool:
    """Whether a scale or bias differs from row to row."""
    lead = value.shape[: max(0, len(value.shape) - len(x.shape) + axis)]
    return any(d != 1 for d in lead)


def _outputs(e: Emitter, node: ir.Node, statistics: tuple[int, ...]) -> list[Buf | None]:
    made: list[Buf | None] = [e.out(node.outputs[0])]
    for value in node.outputs[1:]:
        made.append(e.new(statistics, made[0].dtype))  # type: ignore[union-attr]
        e.bind(value, made[-1])  # type: ignore[arg-type]
    return made + [None] * (3 - len(made))


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

    def emit(rows: Callable[[Buf], Buf], *outs: Buf | None) -> None:
        # ATen gives no adjoint of a bias it is not shown, and never reads one: the scale stands in for it.
        e.compute(
            aten.native_layer_norm_backward.default, rows(dy), rows(x), x.shape[axis:], rows(mean), rows(inv_std),
            scale, scale, [out is not None for out in outs], outs=outs, fresh=True,
        )  # fmt: skip

    pieces = _pieces(e, x, dx, mean, inv_std, axis=axis)
    if len(pieces) == 1:
        emit(pieces[0], dx, dscale, dbias)
        return
    for rows in pieces:
        emit(rows, rows(dx), None, None)
    emit(lambda buf: buf, None, dscale, dbias)


@lowers("BatchNormalization")
def batch_normalization(e: Emitter, node: ir.Node) -> None:
    x, scale, bias, mean, var = (e.value(v) for v in node.inputs)
    a = attributes(node)
    eps, momentum = a.get("epsilon", 1e-5), a.get("momentum", 0.9)
    y = e.out(node.outputs[0])
    if not a.get("training_mode", 0):
        e.compute(torch.batch_norm, x, scale, bias, mean, var, False, 0.0, eps, False, outs=[y])
        return
    new_mean, new_var = (e.out(v) for v in node.outputs[1:3])
    batch_mean, batch_inv = e.new(mean.shape, mean.dtype), e.new(mean.shape, mean.dtype)
    # Where x has another layout than the result, this overload mixes up their elements without a word.
    x = e.contiguous(x)
    e.run(
        aten.native_batch_norm.out, x, scale, bias, None, None, True, 0.0, eps,
        out=y, save_mean=batch_mean, save_invstd=batch_inv, writes=[y, batch_mean, batch_inv],
    )  # fmt: skip
    # The running variance of ONNX is the biased one: 1/inv² − ε.
    batch_var = e.new(mean.shape, mean.dtype)
    e.call(torch.pow, batch_inv, -2, out=batch_var)
    e.run(torch.Tensor.sub_, batch_var, eps, writes=[batch_var])
    e.call(torch.lerp, batch_mean, mean, momentum, out=new_mean)
    e.call(torch.lerp, batch_var, var, momentum, out=new_var)


@lowers_composite("BatchNormalizationGrad")
def batch_normalization_grad(e: Emitter, node: ir.Node) -> None:
    dy, x, scale = (e.value(v) for v in node.inputs)
    eps = attributes(node).get("epsilon", 1e-5)
    outs: list[Buf | None] = [e.out(v) for v in node.outputs]

    def run(dy: torch.Tensor, x: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, ...]:
        axes = [0, *range(2, x.dim())]
        var, mean = torch.var_mean(x, axes, correction=0)
        inv_std = torch.rsqrt(var + eps)
        grads: tuple[torch.Tensor, ...] = aten.native_batch_norm_backward(
            dy, x, scale, None, None, mean, inv_std, True, eps, [True, True, True]
        )
        return grads

    e.compute(run, dy, x, scale, outs=outs, fresh=True)


@lowers(
    "RMSNormalization", "InstanceNormalization", "GroupNormalization", "LpNormalization", "LRN",
    "MeanVarianceNormalization",
)  # fmt: skip
def by_function(e: Emitter, node: ir.Node) -> None:
    a = attributes(node)
    eps = a.get("epsilon", 1e-5)
    functions: dict[str, Callable[..., Any]] = {
        "RMSNormalization": lambda x, s: _rms(x, s, a.get("axis", -1), eps),
        "InstanceNormalization": lambda x, s, b: functional.instance_norm(x, weight=s, bias=b, eps=eps),
        "GroupNormalization": lambda x, s, b: functional.group_norm(x, a["num_groups"], s, b, eps),
        "LpNormalization": lambda x: functional.normalize(x, float(a.get("p", 2)), a.get("axis", -1)),
        "LRN": lambda x: functional.local_response_norm(
            x, a["size"], a.get("alpha", 1e-4), a.get("beta", 0.75), a.get("bias", 1.0)
        ),
        "MeanVarianceNormalization": lambda x: _standardised(x, a.get("axes", [0, 2, 3])),
    }
    e.compute(functions[node.op_type], *(e.value(v) for v in node.inputs), outs=[e.out(node.outputs[0])], fresh=True)


def _rms(x: torch.Tensor, scale: torch.Tensor, axis: int, eps: float) -> torch.Tensor:
    axes = list(range(axis % x.dim(), x.dim()))
    return x * torch.rsqrt(x.square().mean(axes, keepdim=True) + eps) * scale


def _standardised(x: torch.Tensor, axes: list[int]) -> torch.Tensor:
    var, mean = torch.var_mean(x, axes, correction=0, keepdim=True)
    return (x - mean) / (var.sqrt() + 1e-9)
