"""Normalisations and their gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir
import torch
from torch.nn import functional

from ontrain.internals import private
from ontrain.providers.torch.buffers import Buf, order_of
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.batch_statistics import (
    FEW,
    FEW_GRADIENTS,
    batch_statistics,
    gradients_by_parts,
)
from ontrain.providers.torch.lowering.narrow_groups import has_narrow_groups, narrow_group_gradients
from ontrain.providers.torch.lowering.registry import attributes, computed_by, lowers, lowers_composite
from ontrain.providers.torch.lowering.single_precision import in_single_precision

__all__: list[str] = []

aten = torch.ops.aten
_STATISTICS = object()
"""Stands beside what a normalisation keeps for its gradient: its means and inverse deviations."""


@lowers("BatchNormalization")
def batch_normalization(e: Emitter, node: ir.Node) -> None:
    x, scale, bias, mean, var = (e.value(v) for v in node.inputs)
    a = attributes(node)
    eps, momentum = a.get("epsilon", 1e-5), a.get("momentum", 0.9)
    y = e.out(node.outputs[0], x)
    if not a.get("training_mode", 0):
        e.compute(torch.batch_norm, x, scale, bias, mean, var, False, 0.0, eps, False, outs=[y])
        return
    new_mean, new_var = (e.out(v) for v in node.outputs[1:3])
    if not x.meta.numel():  # as in eager PyTorch, no rows leave the statistics as they are
        e.copy(mean, new_mean)
        e.copy(var, new_var)
        return
    measured = _measured(e, mean.dtype)
    batch_mean, batch_inv, batch_var = (e.new(mean.shape, measured) for _ in range(3))
    # Where x has another layout than the result, this overload mixes up their elements without a word.
    x = e.ordered(x, order_of(y.meta))
    if _has_long_sums(e, x, FEW):
        e.compute(batch_statistics, x, eps, outs=[batch_mean, batch_var, batch_inv], fresh=True)
        none = e.new((0,), mean.dtype)
        e.run(
            aten.native_batch_norm.out, x, scale, bias, batch_mean, batch_var, False, 0.0, eps,
            out=y, save_mean=none, save_invstd=none, writes=[y],
        )  # fmt: skip
    else:
        e.run(
            aten.native_batch_norm.out, x, scale, bias, None, None, True, 0.0, eps,
            out=y, save_mean=batch_mean, save_invstd=batch_inv, writes=[y, batch_mean, batch_inv],
        )  # fmt: skip
        # The running variance of ONNX is the biased one: 1/inv² − ε.
        e.call(torch.pow, batch_inv, -2, out=batch_var)
        e.run(torch.Tensor.sub_, batch_var, eps, writes=[batch_var])
    e.keep(node.outputs[0], batch_mean, batch_inv, kernel=_STATISTICS)
    if measured != mean.dtype:
        batch_mean, batch_var = e.cast(batch_mean, mean.dtype), e.cast(batch_var, mean.dtype)
    e.call(torch.lerp, batch_mean, mean, momentum, out=new_mean)
    e.call(torch.lerp, batch_var, var, momentum, out=new_var)


def _measured(e: Emitter, dtype: torch.dtype) -> torch.dtype:
    """The precision in which torch's kernel keeps a batch's statistics: single for halves, too, on a GPU."""
    return torch.promote_types(dtype, torch.float32) if e.device.type == "cuda" else dtype


@lowers_composite("BatchNormalizationGrad")
def batch_normalization_grad(e: Emitter, node: ir.Node) -> None:
    dy, x, scale = (e.value(v) for v in node.inputs)
    eps = attributes(node).get("epsilon", 1e-5)
    statistics = _statistics(e, node, scale.shape, eps)
    if statistics is None:
        measured = _measured(e, scale.dtype)
        statistics = e.new(scale.shape, measured), e.new(scale.shape, measured)
        axes = [0, *range(2, len(x.shape))]

        def measure(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            var, mean = torch.var_mean(x, axes, correction=0)
            return mean, torch.rsqrt(var + eps)

        # Under autocast x is narrower than scale and statistics, which the kernel wants in one dtype.
        e.compute(measure, x if x.dtype == measured else e.cast(x, measured), outs=statistics)
    mask = [e.reads(v) for v in node.outputs]
    x = e.ordered(x, order_of(x.meta))
    dy = e.ordered(dy, order_of(x.meta))
    outs = [e.out(v, x) if wanted else None for v, wanted in zip(node.outputs, mask, strict=True)]
    if not x.meta.numel():
        for out in outs:
            if out is not None:
                e.run(torch.Tensor.zero_, out, writes=[out])
        return
    if _has_long_sums(e, x, FEW_GRADIENTS):
        dx = e.new(x.shape, x.dtype, order_of(x.meta)) if outs[0] is None else outs[0]
        e.compute(gradients_by_parts, dy, x, scale, *statistics, eps, dx, outs=outs[1:], writes=[dx], fresh=True)
        return
    kernel = private("torch.ops.aten.native_batch_norm_backward")
    e.compute(kernel, dy, x, scale, None, None, *statistics, True, eps, mask, outs=outs, fresh=True)


def _has_long_sums(e: Emitter, x: Buf, few: int) -> bool:
    """Whether torch's kernel for these images adds up more than a few rows one after the other in single precision."""
    channels_last = e.device.type == "cpu" and order_of(x.meta) is torch.channels_last
    return channels_last and x.dtype == torch.float32 and x.meta.numel() > few * x.shape[1]


def _statistics(e: Emitter, node: ir.Node, shape: Sequence[int], eps: float) -> tuple[Buf, Buf] | None:
    """Mean and inverse deviation of the forward's normalisation of the same batch, where it ran in this program."""
    x = node.inputs[1]
    for forward in x.consumers() if x is not None else ():
        statistics = e.kept(forward.outputs[0])
        if statistics is None or e.kernel_of(forward.outputs[0]) is not _STATISTICS or forward.inputs[0] is not x:
            continue
        mean, inv_std = statistics
        alike = attributes(forward).get("epsilon", 1e-5) == eps
        if alike and mean is not None and inv_std is not None and mean.shape == tuple(shape):
            return mean, inv_std
    return None


def _order(e: Emitter, x: Buf) -> torch.memory_format:
    """The order in which torch's kernel of groups wants its images: on a GPU not with the channels last."""
    return order_of(x.meta) if e.device.type == "cpu" else torch.contiguous_format


@lowers("GroupNormalization", "InstanceNormalization")
def group_normalization(e: Emitter, node: ir.Node) -> None:
    x, scale, bias = (e.value(v) for v in node.inputs)
    a = attributes(node)
    groups, eps = a.get("num_groups", x.shape[1]), a.get("epsilon", 1e-5)
    x = e.ordered(x, _order(e, x))
    y = e.out(node.outputs[0], x)
    mean, inv_std = (e.new((x.shape[0], groups), x.dtype) for _ in range(2))
    e.compute(
        torch.native_group_norm, x, scale, bias, *_extent(x), groups, eps, outs=[y, mean, inv_std], fresh=True
    )  # fmt: skip
    e.keep(node.outputs[0], mean, inv_std, kernel=_STATISTICS)


@lowers_composite("GroupNormalizationGrad")
def group_normalization_grad(e: Emitter, node: ir.Node) -> None:
    dy, x, scale = (e.value(v) for v in node.inputs)
    a = attributes(node)
    groups, eps = a["num_groups"], a.get("epsilon", 1e-5)
    x = e.ordered(x, _order(e, x))
    dy = e.ordered(dy, _order(e, x))
    shape = x.shape[0], groups
    statistics = _statistics(e, node, shape, eps)
    if statistics is None:
        statistics = e.new(shape, x.dtype), e.new(shape, x.dtype)

        def measure(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            var, mean = torch.var_mean(x.reshape(x.shape[0], groups, -1), 2, correction=0)
            return mean, torch.rsqrt(var + eps)

        e.compute(measure, x, outs=statistics)
    mask = [e.reads(v) for v in node.outputs]
    outs = [e.out(v, x) if wanted else None for v, wanted in zip(node.outputs, mask, strict=True)]
    if has_narrow_groups(e, x, groups):
        e.compute(narrow_group_gradients, dy, x, *statistics, scale, outs=outs, fresh=True)
        return
    kernel = private("torch.ops.aten.native_group_norm_backward")
    e.compute(kernel, dy, x, *statistics, scale, *_extent(x), groups, mask, outs=outs, fresh=True)


def _extent(x: Buf) -> tuple[int, int, int]:
    """Samples, channels, and places of each."""
    return x.shape[0], x.shape[1], math.prod(x.shape[2:])


@lowers("RMSNormalization")
def rms_normalization(e: Emitter, node: ir.Node) -> None:
    """By way of the norm: one pass over x to measure it, one to scale it by rows, and one, in place, by columns."""
    x, scale = (e.value(v) for v in node.inputs)
    a = attributes(node)
    axes, eps = list(range(a.get("axis", -1) % len(x.shape), len(x.shape))), a.get("epsilon", 1e-5)
    # In half precision squares overflow from 256 on.
    wide = x if x.dtype in (torch.float32, torch.float64) or a.get("stash_type", 1) != 1 else e.cast(x, torch.float32)
    inverse = e.new((*x.shape[: axes[0]], *([1] * len(axes))), wide.dtype)
    e.call(torch.linalg.vector_norm, wide, 2, axes, True, out=inverse)
    width = max(1, math.prod(x.shape[axes[0] :]))
    epsilon = e.there(e.constant(torch.tensor(eps, dtype=wide.dtype)))
    e.call(torch.addcmul, epsilon, inverse, inverse, value=1 / width, out=inverse)
    e.run(torch.Tensor.rsqrt_, inverse, writes=[inverse])
    y = e.out(node.outputs[0], x)
    normal = y if wide.dtype == y.dtype else e.new(x.shape, wide.dtype)
    e.call(torch.mul, wide, inverse, out=normal, elementwise=True)
    if normal is not y:
        e.copy(normal, y)
    e.run(torch.Tensor.mul_, y, scale, writes=[y])


computed_by(
    fresh=True,
    LpNormalization=lambda a, x: functional.normalize(x, float(a.get("p", 2)), a.get("axis", -1)),
    LRN=lambda a, x: _across_channels(x, a["size"], a.get("alpha", 1e-4), a.get("beta", 0.75), a.get("bias", 1.0)),
    MeanVarianceNormalization=lambda a, x: _standardised(x, a.get("axes", [0, 2, 3])),
)


@in_single_precision
def _across_channels(x: torch.Tensor, size: int, alpha: float, beta: float, bias: float) -> torch.Tensor:
    """A window of an even size reaches one channel further behind than before in ONNX, and the other way in torch."""
    mirrored = size % 2 == 0
    y = functional.local_response_norm(x.flip(1) if mirrored else x, size, alpha, beta, bias)
    return y.flip(1) if mirrored else y


def _standardised(x: torch.Tensor, axes: list[int]) -> torch.Tensor:
    var, mean = torch.var_mean(x, axes, correction=0, keepdim=True)
    return (x - mean) / (var.sqrt() + 1e-9)
