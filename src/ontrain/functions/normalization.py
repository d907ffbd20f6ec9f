"""Gradients of normalisations."""

from __future__ import annotations

from ontrain.functions.registry import composite
from ontrain.graph import Builder, static_dims
from ontrain.operators import Value

__all__: list[str] = []


def _through(op: Builder, g: Value, x_hat: Value, inv_std: Value, axes: list[int]) -> Value:
    """Adjoint of x from the adjoint g of x̂ = (x − mean) · inv_std, whose moments are taken over `axes`."""
    return inv_std * (g - op.ReduceMean(g, axes, keepdims=1) - x_hat * op.ReduceMean(g * x_hat, axes, keepdims=1))


@composite("LayerNormalizationGrad", like=[1, 2, 2])
def layer_normalization_grad(
    op: Builder, dy: Value, x: Value, scale: Value, mean: Value, inv_std: Value, *, axis: int = -1
) -> tuple[Value, Value, Value]:
    """Adjoints of (x, scale, bias) from LayerNormalization's saved mean and inverse deviation.

    `scale` has the shape of the normalised axes `axis…rank-1`; `mean` and `inv_std` have ones there, and theirs is the
    dtype of the computation: single precision for a half-precision x.
    Source: https://onnx.ai/onnx/operators/onnx__LayerNormalization.html
    """
    rank = len(static_dims(x))
    first = axis % rank
    inner, outer = list(range(first, rank)), list(range(first))
    wide_dy, wide_x, wide_scale = (op.Cast(v, to=mean.dtype) for v in (dy, x, scale))
    x_hat = (wide_x - mean) * inv_std
    g = wide_dy * wide_scale
    dx = _through(op, g, x_hat, inv_std, inner)
    dscale, dbias = wide_dy * x_hat, op.Identity(wide_dy)
    if outer:
        dscale, dbias = op.ReduceSum(dscale, outer, keepdims=0), op.ReduceSum(wide_dy, outer, keepdims=0)
    return op.Cast(dx, to=x.dtype), op.Cast(dscale, to=scale.dtype), op.Cast(dbias, to=scale.dtype)


@composite("BatchNormalizationGrad", like=[1, 2, 2])
def batch_normalization_grad(
    op: Builder, dy: Value, x: Value, scale: Value, *, epsilon: float = 1e-5
) -> tuple[Value, Value, Value]:
    """Adjoints of (x, scale, bias) for BatchNormalization in training mode; x is [N, C, …], scale is [C].

    The computation has scale's dtype.
    Source: Ioffe and Szegedy 2015, section 3.
    """
    rank = len(static_dims(x))
    others = [0, *range(2, rank)]
    wide_dy, wide_x = (op.Cast(v, to=scale.dtype) for v in (dy, x))
    centred = wide_x - op.ReduceMean(wide_x, others, keepdims=1)
    inv_std = op.Reciprocal(op.Sqrt(op.ReduceMean(centred * centred, others, keepdims=1) + epsilon))
    x_hat = centred * inv_std
    g = wide_dy * op.Reshape(scale, [1, -1] + [1] * (rank - 2))
    dx = _through(op, g, x_hat, inv_std, others)
    dscale, dbias = op.ReduceSum(wide_dy * x_hat, others, keepdims=0), op.ReduceSum(wide_dy, others, keepdims=0)
    return op.Cast(dx, to=x.dtype), dscale, dbias


@composite("GroupNormalizationGrad", like=[1, 2, 2])
def group_normalization_grad(
    op: Builder, dy: Value, x: Value, scale: Value, *, num_groups: int, epsilon: float = 1e-5
) -> tuple[Value, Value, Value]:
    """Adjoints of (x, scale, bias) for GroupNormalization; x is [N, C, …], scale is [C], all of one dtype.

    Source: https://onnx.ai/onnx/operators/onnx__GroupNormalization.html
    """
    n, c, *space = shape = static_dims(x)
    grouped = [n, num_groups, c // num_groups, *space]
    inner, others = list(range(2, len(grouped))), [0, *range(2, len(shape))]
    centred = op.Reshape(x, grouped)
    centred = centred - op.ReduceMean(centred, inner, keepdims=1)
    inv_std = op.Reciprocal(op.Sqrt(op.ReduceMean(centred * centred, inner, keepdims=1) + epsilon))
    x_hat = centred * inv_std
    g = op.Reshape(dy * op.Reshape(scale, [1, -1] + [1] * len(space)), grouped)
    dx = _through(op, g, x_hat, inv_std, inner)
    dscale = op.ReduceSum(dy * op.Reshape(x_hat, list(shape)), others, keepdims=0)
    return op.Reshape(dx, list(shape)), dscale, op.ReduceSum(dy, others, keepdims=0)
