"""Gradients of normalisations."""

from __future__ import annotations

from typing import Any

from ontrain.functions.registry import composite
from ontrain.graph import static_dims

__all__: list[str] = []


@composite("LayerNormalizationGrad", like=[1, 2, 2])
def layer_normalization_grad(
    op: Any, dy: Any, x: Any, scale: Any, mean: Any, inv_std: Any, *, axis: int = -1
) -> tuple[Any, Any, Any]:
    """Adjoints of (x, scale, bias) from LayerNormalization's saved mean and inverse deviation.

    `scale` has the shape of the normalised axes `axis…rank-1`; `mean` and `inv_std` have ones there.
    Source: https://onnx.ai/onnx/operators/onnx__LayerNormalization.html
    """
    rank = len(static_dims(x))
    first = axis % rank
    inner, outer = list(range(first, rank)), list(range(first))
    x_hat = (x - mean) * inv_std
    g = dy * scale
    dx = inv_std * (
        g - op.ReduceMean(g, inner, keepdims=1) - x_hat * op.ReduceMean(g * x_hat, inner, keepdims=1)
    )
    if not outer:
        return dx, dy * x_hat, op.Identity(dy)
    return dx, op.ReduceSum(dy * x_hat, outer, keepdims=0), op.ReduceSum(dy, outer, keepdims=0)


@composite("BatchNormalizationGrad", like=[1, 2, 2])
def batch_normalization_grad(op: Any, dy: Any, x: Any, scale: Any, *, epsilon: float = 1e-5) -> tuple[Any, Any, Any]:
    """Adjoints of (x, scale, bias) for BatchNormalization in training mode; x is [N, C, …], scale is [C].

    Source: Ioffe and Szegedy 2015, section 3.
    """
    rank = len(static_dims(x))
    others = [0, *range(2, rank)]
    mean = op.ReduceMean(x, others, keepdims=1)
    centred = x - mean
    var = op.ReduceMean(centred * centred, others, keepdims=1)
    inv_std = op.Reciprocal(op.Sqrt(var + epsilon))
    x_hat = centred * inv_std
    channel = op.Reshape(scale, [1, -1] + [1] * (rank - 2))
    g = dy * channel
    dx = inv_std * (
        g - op.ReduceMean(g, others, keepdims=1) - x_hat * op.ReduceMean(g * x_hat, others, keepdims=1)
    )
    return dx, op.ReduceSum(dy * x_hat, others, keepdims=0), op.ReduceSum(dy, others, keepdims=0)
