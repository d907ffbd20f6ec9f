"""Normalisations."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import onnx_ir as ir

from ontrain.operators.agreement import broadcast
from ontrain.operators.emit import Value
from ontrain.operators.gradients import Adjoints, Op, gradient
from ontrain.operators.record import DOMAIN, Evaluator, Outrun, Rows, Stock, define
from ontrain.operators.shapes import static_dims

__all__: list[str] = []


def _per_channel(node: ir.Node, shapes: Sequence[tuple[int, ...]]) -> Iterator[tuple[int, int]]:
    for shape in shapes[1:]:
        if len(shapes[0]) > 1 and shape:
            yield shapes[0][1], shape[0]


define("SimplifiedLayerNormalization", evaluator=Evaluator.LACKS, stock=Stock.COMPARED)
define("BatchNormalizationGrad", domain=DOMAIN)
define("GroupNormalizationGrad", domain=DOMAIN)
define("LayerNormalizationGrad", domain=DOMAIN)


def _moments(op: Op, x: Value, axes: list[int], epsilon: float) -> tuple[Any, Any]:
    """Mean of x over `axes` and 1 / sqrt(variance + epsilon), axes kept."""
    mean = op.ReduceMean(x, axes, keepdims=1)
    centred = x - mean
    return mean, op.Reciprocal(op.Sqrt(op.ReduceMean(centred * centred, axes, keepdims=1) + epsilon))


def _through(op: Op, g: Value, x_hat: Value, inv_std: Value, axes: list[int]) -> Value:
    """Adjoint of x from the adjoint g of x̂ = (x − mean) · inv_std (Ba et al. 2016)."""
    along = x_hat * op.ReduceMean(g * x_hat, axes, keepdims=1)
    return inv_std * (g - op.ReduceMean(g, axes, keepdims=1) - along)


define("LayerNormalization", agreeing=broadcast, rows=Rows.FROM_AXIS, stock=Stock.KERNEL)


@gradient("LayerNormalization")
def layer_normalization(
    op: Op, dy: Value | None, x: Value, scale: Value, bias: Value | None = None,
    *, axis: int, epsilon: float, stash_type: int,
) -> Adjoints:  # fmt: skip
    """The composite from the saved moments, and what flows back through the moments if they are used themselves."""
    shape, rank = static_dims(x), len(static_dims(x))
    inner = list(range(axis % rank, rank))
    if x.dtype == ir.DataType.DOUBLE:
        mean, inv_std = _moments(op, x, inner, epsilon)  # the operator saves them in single precision
    else:
        mean, inv_std = op.saved(1), op.saved(2)
    grads: list[Value | None] = [None, None, None]
    varies = any(v is not None and math.prod(static_dims(v)[: -len(inner)]) > 1 for v in (scale, bias))
    if dy is not None and varies:
        # The scale differs from row to row: nothing for the composite, whose scale all rows share.
        wide_dy, wide_x, wide_scale = (op.Cast(v, to=mean.dtype) for v in (dy, x, scale))
        x_hat = (wide_x - mean) * inv_std
        dx = _through(op, wide_dy * wide_scale, x_hat, inv_std, inner)
        grads = [None, wide_dy * x_hat, dy]
        grads[0] = op.Cast(dx, to=x.dtype)
    elif dy is not None:
        if static_dims(scale) != shape[inner[0] :]:
            scale = op.Expand(op.reshaped(scale, static_dims(scale)[-len(inner) :]), list(shape[inner[0] :]))
        grads = list(op.composite("LayerNormalizationGrad", dy, x, scale, mean, inv_std, outputs=3, axis=axis))
    return _with_moments(op, grads, x, mean, inv_std, inner)[: len(op.inputs)]


def _with_moments(
    op: Op, grads: list[Value | None], x: Value, mean: Value, inv_std: Value, inner: list[int]
) -> list[Value | None]:
    """Add what the adjoints of the outputs mean and inv_std contribute to x: 1/n and −inv_std³ · (x − mean) / n."""
    n = math.prod(static_dims(x)[i] for i in inner)
    dmean, dinv_std = (op.dys[i] if len(op.dys) > i else None for i in (1, 2))
    parts = [grads[0]] if grads[0] is not None else []
    if dmean is not None:
        parts.append(op.Expand(op.Cast(dmean / n, to=x.dtype), list(static_dims(x))))
    if dinv_std is not None:
        slope = op.Cast(dinv_std, to=inv_std.dtype) * inv_std * inv_std * inv_std / n
        parts.append(op.Cast(slope * (mean - op.Cast(x, to=mean.dtype)), to=x.dtype))
    return [op.Sum(*parts) if len(parts) > 1 else parts[0], *grads[1:]]


define("RMSNormalization", agreeing=broadcast, rows=Rows.FROM_AXIS, overwrites=(0,), stock=Stock.BODY)


@gradient("RMSNormalization")
def rms_normalization(
    op: Op, dy: Value, x: Value, scale: Value, *, axis: int, epsilon: float, stash_type: int
) -> Adjoints:
    """For y = x̂ · scale, x̂ = x / sqrt(mean(x²) + epsilon): inv · (g − x̂ · mean(g · x̂)) and dy · x̂."""
    rank = len(static_dims(x))
    inner = list(range(axis % rank, rank))
    work = ir.DataType.FLOAT if x.dtype != ir.DataType.DOUBLE and stash_type == 1 else x.dtype
    wide = op.Cast(x, to=work)
    inv = op.Reciprocal(op.Sqrt(op.ReduceMean(wide * wide, inner, keepdims=1) + epsilon))
    x_hat, dy = wide * inv, op.Cast(dy, to=work)
    g = dy * op.Cast(scale, to=work)
    return inv * (g - x_hat * op.ReduceMean(g * x_hat, inner, keepdims=1)), dy * x_hat


def _by_running_statistics(node: ir.Node) -> Stock:
    return Stock.COMPARED if node.attributes.get_int("training_mode", 0) else Stock.KERNEL


define("BatchNormalization", agreeing=_per_channel, updates=True, stock=Stock.COMPARED, forms=_by_running_statistics)


@gradient("BatchNormalization")
def batch_normalization(
    op: Op, dy: Value | None, x: Value, scale: Value, bias: Value, mean: Value, var: Value,
    *, epsilon: float, training_mode: int, momentum: float,
) -> Adjoints:  # fmt: skip
    """In training the composite; in inference x̂ is affine in x with the running statistics."""
    if any(g is not None for g in op.dys[1:]):
        raise op.refused("nothing flows back through the running statistics", "detach them")
    if training_mode:
        grads = op.composite("BatchNormalizationGrad", dy, x, scale, outputs=3, epsilon=epsilon)
        return *grads, None, None
    assert dy is not None
    rank = len(static_dims(x))
    channel, others = [1, -1] + [1] * (rank - 2), [0, *range(2, rank)]
    inv_std = op.Reciprocal(op.Sqrt(op.Cast(var, to=x.dtype) + epsilon))
    slope = op.Cast(scale, to=x.dtype) * inv_std
    dbias = op.ReduceSum(dy, others, keepdims=0)
    if not any((op.wanted[1], op.wanted[3], op.wanted[4])):
        return dy * op.Reshape(slope, channel), None, dbias, None, None
    centred = x - op.Reshape(op.Cast(mean, to=x.dtype), channel)
    dslope = op.ReduceSum(dy * centred, others, keepdims=0)
    dvar = -0.5 * dslope * slope * inv_std * inv_std
    return dy * op.Reshape(slope, channel), dslope * inv_std, dbias, -dbias * slope, dvar


define("InstanceNormalization", agreeing=_per_channel, stock=Stock.KERNEL)


@gradient("InstanceNormalization")
def instance_normalization(op: Op, dy: Value, x: Value, scale: Value, bias: Value, *, epsilon: float) -> Adjoints:
    """The composite for groups of one channel."""
    groups = static_dims(x)[1]
    return op.composite("GroupNormalizationGrad", dy, x, scale, outputs=3, num_groups=groups, epsilon=epsilon)


define("GroupNormalization", like_first=True, agreeing=_per_channel, stock=Stock.COMPARED)


@gradient("GroupNormalization")
def group_normalization(
    op: Op, dy: Value, x: Value, scale: Value, bias: Value,
    *, epsilon: float, num_groups: int, stash_type: int,
) -> Adjoints:  # fmt: skip
    """The composite, in single precision where x is in half precision."""
    work = ir.DataType.FLOAT if x.dtype != ir.DataType.DOUBLE and stash_type == 1 else x.dtype
    dy, x, scale = (op.Cast(v, to=work) for v in (dy, x, scale))
    return op.composite("GroupNormalizationGrad", dy, x, scale, outputs=3, num_groups=num_groups, epsilon=epsilon)


define("LpNormalization", singular=True, choices={"p": (1, 2)}, stock=Stock.COMPARED)


@gradient("LpNormalization")
def lp_normalization(op: Op, dy: Value, x: Value, *, axis: int, p: int) -> Adjoints:
    """For y = x / ‖x‖: (dy − ∂‖x‖/∂x · Σ dy·y) / ‖x‖, where ∂‖x‖/∂x is sign(x) for p = 1 and y for p = 2."""
    y = op.outputs[0]
    norm = op.ReduceL1(x, [axis], keepdims=1) if p == 1 else op.ReduceL2(x, [axis], keepdims=1)
    return (dy - (op.Sign(x) if p == 1 else y) * op.ReduceSum(dy * y, [axis], keepdims=1)) / norm


define("LRN", stock=Stock.COMPARED)


@gradient("LRN")
def local_response_normalization(
    op: Op, dy: Value, x: Value, *, alpha: float, beta: float, bias: float, size: int
) -> Adjoints:
    """For y = x · s⁻ᵝ, s = bias + alpha · (mean of x² over the channels around): its two uses of x."""
    n, c, *space = shape = static_dims(x)

    def around(v: Value, before: int, after: int) -> Value:
        images = op.reshaped(v, [n, 1, c, math.prod(space)])
        mean = op.AveragePool(images, kernel_shape=[size, 1], pads=[before, 0, after, 0], count_include_pad=1)
        return op.reshaped(mean, shape)

    before, after = (size - 1) // 2, size // 2
    s = around(x * x, before, after) * alpha + bias
    inner = around(dy * op.outputs[0] / s, after, before)
    return dy * op.Pow(s, -beta) - (2 * alpha * beta) * x * inner


define("MeanVarianceNormalization", like_first=True, outrun=Outrun.ALONE)


@gradient("MeanVarianceNormalization")
def mean_variance_normalization(op: Op, dy: Value, x: Value, *, axes: tuple[int, ...]) -> Adjoints:
    """For y = (x − mean) / (std + 1e-9)."""
    over = list(axes)
    centred = x - op.ReduceMean(x, over, keepdims=1)
    std = op.Sqrt(op.ReduceMean(centred * centred, over, keepdims=1))
    g = (dy - op.ReduceMean(dy, over, keepdims=1)) / (std + 1e-9)
    return g - op.outputs[0] * op.ReduceMean(dy * op.outputs[0], over, keepdims=1) / std
