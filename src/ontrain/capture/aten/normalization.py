"""Normalisations. Batch normalisation in train mode also gives its running statistics their next values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from ontrain.capture.aten.precision import in_single
from ontrain.capture.aten.reduction import length
from ontrain.capture.aten.registry import aten
from ontrain.capture.context import AtenBuilder, Dim, dtype_of
from ontrain.operators import Value

__all__: list[str] = []


@aten("layer_norm", "native_layer_norm")
def layer_norm(
    op: AtenBuilder, x: Value, normalized_shape: Sequence[int], weight: Value | None = None, bias: Value | None = None,
    eps: float = 1e-5, cudnn_enable: bool = True,
) -> Value | tuple[Value, ...]:  # fmt: skip
    shape = [int(size) for size in normalized_shape]
    x = _as_weight(op, x, weight)
    scale = weight if weight is not None else op.const(np.ones(shape, x.dtype.numpy()))
    # The gradient reads the mean and the inverse deviation.
    outputs = op.LayerNormalization(x, scale, bias, axis=-len(shape), epsilon=eps, outputs=3)
    y = op.cast(outputs[0], op.dtype)
    if "native" not in str(op.node.target):
        return y
    return y, *(op.cast(moment, _moments_dtype(op)) for moment in outputs[1:])


def _moments_dtype(op: AtenBuilder) -> ir.DataType:
    """In what torch keeps the moments of the current node: beside halves single precision on a GPU, halves on a CPU."""
    dtype: torch.dtype = op.node.meta["val"][1].dtype
    return dtype_of(dtype)


@aten("rms_norm", "_fused_rms_norm")
def rms_norm(
    op: AtenBuilder, x: Value, normalized_shape: Sequence[int], weight: Value | None = None, eps: float | None = None
) -> tuple[Value, Value] | Value:
    axes = list(range(-len(normalized_shape), 0))
    computed = torch.promote_types(op.argument(0).dtype, torch.float32)  # of halves too
    eps = torch.finfo(computed).eps if eps is None else eps
    x = op.cast(x, dtype_of(computed))
    inverse = op.Reciprocal(op.Sqrt(op.ReduceMean(x * x, axes, keepdims=1) + op.cast(eps, x.dtype)))
    y = x * inverse
    y = op.cast(y if weight is None else y * op.cast(weight, x.dtype), op.dtype)
    return (y, op.cast(inverse, _moments_dtype(op))) if "fused" in str(op.node.target) else y


@aten("_weight_norm")
@in_single
def weight_norm(op: AtenBuilder, v: Value, g: Value, dim: int = 0) -> Value:
    """v at the length g; of v each slice along `dim` has a length, and all of v has one where `dim` is -1."""
    rank = len(op.input_shape(0))
    axes = None if dim == -1 else [axis for axis in range(rank) if axis != dim % rank]
    return v * (g / length(op, v, 2, axes, True))


def _ones_and_zeros(op: AtenBuilder, x: Value, *per_channel: Value | None) -> tuple[Any, Any]:
    """A scale and a shift that change nothing, in the precision of the vectors that the module has: x may be a half."""
    channels = op.input_shape(0)[1]
    assert isinstance(channels, int), "the number of channels varies"
    dtype = next((value.dtype for value in per_channel if value is not None), x.dtype).numpy()
    return op.const(np.ones(channels, dtype)), op.const(np.zeros(channels, dtype))


def _batch_norm_training(
    op: AtenBuilder, x: Value, weight: Value | None, bias: Value | None, mean: Value | None, var: Value | None,
    momentum: float, eps: float,
) -> tuple[Value, Value | None, Value | None]:  # fmt: skip
    """Return y and the next running mean and variance (None where the module keeps none)."""
    ones, zeros = _ones_and_zeros(op, x, weight, bias, mean, var)
    y, next_mean, next_var = op.BatchNormalization(
        x, weight if weight is not None else ones, bias if bias is not None else zeros,
        mean if mean is not None else zeros, var if var is not None else ones,
        epsilon=eps, momentum=1 - momentum, training_mode=1, outputs=3,
    )  # fmt: skip
    if mean is None or var is None:
        return y, None, None
    # ONNX averages the biased variance b into r = (1−m)·v + m·b, torch b + b/(n−1): r + (r − (1−m)·v)/(n−1).
    fresh = next_var - var * op.cast(1 - momentum, next_var.dtype)
    return y, next_mean, next_var + fresh * _correction(op, next_var.dtype)


def _correction(op: AtenBuilder, dtype: ir.DataType) -> Value:
    """1 / (n − 1) for the number n of values per channel; 0 for one, and for none."""
    shape = op.input_shape(0)
    counted = [shape[0], *shape[2:]]
    n = op.count(counted)
    if isinstance(n, int):
        return op.cast(1 / (n - 1) if n > 1 else 0.0, dtype)
    n = op.cast(n, dtype)
    return op.Sign(n) / (n - op.cast(1, dtype))


@aten("batch_norm", "cudnn_batch_norm")
def batch_norm(
    op: AtenBuilder, x: Value, weight: Value | None, bias: Value | None, running_mean: Value | None,
    running_var: Value | None, training: bool, momentum: float, eps: float, cudnn_enabled: bool = True,
) -> Value:  # fmt: skip
    if not training:
        ones, zeros = _ones_and_zeros(op, x, weight, bias, running_mean)
        scale, shift = (weight if weight is not None else ones), (bias if bias is not None else zeros)
        return op.BatchNormalization(x, scale, shift, running_mean, running_var, epsilon=eps)
    y, mean, var = _batch_norm_training(op, x, weight, bias, running_mean, running_var, momentum, eps)
    if mean is not None and var is not None:
        # The operator changes these two arguments though its schema does not say so.
        op.assign(op.node.args[3], mean)
        op.assign(op.node.args[4], var)
    return y


@aten("_native_batch_norm_legit_functional")
def batch_norm_functional(
    op: AtenBuilder, x: Value, weight: Value | None, bias: Value | None, running_mean: Value, running_var: Value,
    training: bool, momentum: float, eps: float,
) -> tuple[Value, Value, Value, Value | None, Value | None]:  # fmt: skip
    if not training:
        y = batch_norm(op, x, weight, bias, running_mean, running_var, False, momentum, eps)
        return y, *_no_moments(op), running_mean, running_var
    y, mean, var = _batch_norm_training(op, x, weight, bias, running_mean, running_var, momentum, eps)
    assert mean is not None and var is not None, "the operator has running statistics"
    # Of a module in halves torch says that these are in single precision; the buffers take them as halves.
    types = [dtype_of(val.dtype) for val in op.node.meta["val"][3:]]
    return y, *_saved_moments(op, x, eps), op.cast(mean, types[0]), op.cast(var, types[1])


def _saved_moments(op: AtenBuilder, x: Value, eps: float) -> tuple[Value, Value]:
    """The mean of each channel, and one over the square root of its variance: what torch keeps for its own backward."""
    x = op.cast(op.composite("Detach", x), _moments_dtype(op))
    axes = [axis for axis in range(len(op.input_shape(0))) if axis != 1]
    mean = op.ReduceMean(x, axes, keepdims=1)
    variance = op.ReduceMean((x - mean) * (x - mean), axes, keepdims=0)
    return op.Squeeze(mean, axes), op.Reciprocal(op.Sqrt(variance + op.cast(eps, x.dtype)))


@aten("_batch_norm_with_update_functional")
def batch_norm_with_update(
    op: AtenBuilder, x: Value, weight: Value | None, bias: Value | None, running_mean: Value, running_var: Value,
    momentum: float, eps: float,
) -> tuple[Value, Value, Value, Value, Value | None, Value | None]:  # fmt: skip
    y, mean, var = _batch_norm_training(op, x, weight, bias, running_mean, running_var, momentum, eps)
    return y, *_saved_moments(op, x, eps), op.const(np.zeros(0, np.uint8)), mean, var


@aten("_native_batch_norm_legit_no_training")
def batch_norm_inference(
    op: AtenBuilder, x: Value, weight: Value | None, bias: Value | None, running_mean: Value, running_var: Value,
    momentum: float, eps: float,
) -> tuple[Value, Value, Value]:  # fmt: skip
    return batch_norm(op, x, weight, bias, running_mean, running_var, False, momentum, eps), *_no_moments(op)


def _no_moments(op: AtenBuilder) -> tuple[Value, Value]:
    """What torch returns beside normalising by running statistics: none on a CPU, vectors without use on a GPU."""
    shapes = [tuple(map(int, val.shape)) for val in op.node.meta["val"][1:3]]
    mean, inverse = (op.const(np.zeros(shape), _moments_dtype(op)) for shape in shapes)
    return mean, inverse


@aten("_native_batch_norm_legit.no_stats")
def batch_norm_no_stats(
    op: AtenBuilder, x: Value, weight: Value | None, bias: Value | None, training: bool, momentum: float, eps: float
) -> tuple[Value, Value, Value]:
    return _batch_norm_training(op, x, weight, bias, None, None, momentum, eps)[0], *_saved_moments(op, x, eps)


def _per_channel(op: AtenBuilder, y: Value, weight: Value | None, bias: Value | None) -> Value:
    """Scale and shift by vectors [C] along axis 1."""
    shape = [-1, *[1] * (len(op.input_shape(0)) - 2)]
    y = y if weight is None else y * op.Reshape(weight, shape)
    return y if bias is None else y + op.Reshape(bias, shape)


def _standardised(op: AtenBuilder, x: Value, axes: list[int], eps: float) -> Value:
    centred = x - op.ReduceMean(x, axes, keepdims=1)
    variance = op.ReduceMean(centred * centred, axes, keepdims=1)
    return centred * op.Reciprocal(op.Sqrt(variance + op.cast(eps, x.dtype)))


@aten("group_norm")
def group_norm(
    op: AtenBuilder, x: Value, num_groups: int, weight: Value | None = None, bias: Value | None = None,
    eps: float = 1e-5, cudnn_enabled: bool = True,
) -> Value:  # fmt: skip
    shape = op.input_shape(0)
    x = _as_weight(op, x, weight)
    if len(shape) > 2 and isinstance(shape[1], int):
        scale, shift = _affine(op, x, shape[1], weight, bias)
        precision = x.dtype.value if x.dtype == ir.DataType.DOUBLE else None  # else it is single
        y = op.GroupNormalization(
            x, scale, shift, num_groups=num_groups, epsilon=float(eps), stash_type=precision
        )  # fmt: skip
        return op.cast(y, op.dtype)
    return op.cast(_plain_group_norm(op, x, num_groups, weight, bias, eps), op.dtype)


@in_single
def _plain_group_norm(
    op: AtenBuilder, x: Value, num_groups: int, weight: Value | None, bias: Value | None, eps: float
) -> Value:
    shape = op.input_shape(0)
    y = _standardised(op, _grouped(op, x, num_groups), [2], eps)
    return _per_channel(op, op.reshape(y, shape, [shape[0], num_groups, -1]), weight, bias)


def _grouped(op: AtenBuilder, x: Value, groups: int) -> Value:
    """[N, groups, elements of each]; their number is said where it is known, as an empty batch does not tell it."""
    sizes = [size for size in op.input_shape(0)[1:] if isinstance(size, int)]
    length = math.prod(sizes) // groups if len(sizes) + 1 == len(op.input_shape(0)) else -1
    return op.Reshape(x, [0, groups, length])


def _as_weight(op: AtenBuilder, x: Value, weight: Value | None) -> Value:
    """Under autocast the parameters keep single precision, and torch computes in it."""
    return x if weight is None or weight.dtype == x.dtype else op.cast(x, weight.dtype)


def _affine(op: AtenBuilder, x: Value, channels: int, weight: Value | None, bias: Value | None) -> tuple[Value, Value]:
    """A scale and a bias for each channel, where the standard's operator needs them."""
    scale = op.const(np.ones(channels), x.dtype) if weight is None else weight
    return scale, op.const(np.zeros(channels), x.dtype) if bias is None else bias


@aten("native_group_norm")
@in_single
def native_group_norm(
    op: AtenBuilder, x: Value, weight: Value | None, bias: Value | None, n: Dim, c: Dim, hw: Dim, group: int, eps: float
) -> tuple[Value, Value | None, Value | None]:
    shape = op.input_shape(0)
    flat = _grouped(op, x, group)
    mean, variance = _moments(op, flat, [2])
    inverse = op.Reciprocal(op.Sqrt(variance + op.cast(eps, x.dtype)))
    y = op.reshape((flat - mean) * inverse, shape, [shape[0], group, -1])
    return _per_channel(op, y, weight, bias), op.Squeeze(mean, [2]), op.Squeeze(inverse, [2])


@aten("instance_norm")
def instance_norm(
    op: AtenBuilder, x: Value, weight: Value | None, bias: Value | None, running_mean: Value | None,
    running_var: Value | None, use_input_stats: bool, momentum: float, eps: float, cudnn_enabled: bool,
) -> Value:  # fmt: skip
    if not use_input_stats:
        return batch_norm(op, x, weight, bias, running_mean, running_var, False, momentum, eps)
    axes = list(range(2, len(op.input_shape(0))))
    if running_mean is not None and running_var is not None:
        _track(op, x, axes, running_mean, running_var, momentum)
    return op.cast(_instance_norm(op, _as_weight(op, x, weight), weight, bias, eps), op.dtype)


@in_single
def _instance_norm(op: AtenBuilder, x: Value, weight: Value | None, bias: Value | None, eps: float) -> Value:
    channels = op.input_shape(0)[1]
    if isinstance(channels, int):
        return op.InstanceNormalization(x, *_affine(op, x, channels, weight, bias), epsilon=float(eps))
    axes = list(range(2, len(op.input_shape(0))))
    return _per_channel(op, _standardised(op, x, axes, eps), weight, bias)


def _moments(op: AtenBuilder, x: Value, axes: list[int]) -> tuple[Value, Value]:
    mean = op.ReduceMean(x, axes, keepdims=1)
    centred = x - mean
    return mean, op.ReduceMean(centred * centred, axes, keepdims=1)


def _track(op: AtenBuilder, x: Value, axes: list[int], mean: Value, var: Value, momentum: float) -> None:
    """Give running statistics their next values: those of the instances, averaged over the batch."""
    moments = _moments(op, x, axes)
    sizes = op.input_shape(0)[2:]
    count = op.cast(op.count(sizes), x.dtype)
    unbiased = moments[1] * (count / (count - op.cast(1, x.dtype)))
    for position, before, own in ((3, mean, moments[0]), (4, var, unbiased)):
        average = op.cast(op.ReduceMean(own, [0, *axes], keepdims=0), before.dtype)
        fresh, share = op.cast(momentum, before.dtype), op.cast(1 - momentum, before.dtype)
        op.assign(op.node.args[position], before * share + op.composite("Detach", average) * fresh)
