"""Optimizer updates and the global gradient norm.

In every update `scale` multiplies the gradient first: it carries clipping and 1 / (loss scale · labels).
`learning_rate` (lr in formulas), `step` and `scale` are 0-d float32; `step` is the number of this update, from 1.
Parameters narrower than float32 are updated in float32 and rounded once.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.functions.registry import composite
from ontrain.graph import Builder
from ontrain.operators import Value

__all__ = ["decimal", "lamb_direction", "lamb_move"]

_INF = math.inf


@functools.lru_cache(64)
def decimal(value: float) -> float:
    """Return the shortest decimal that rounds to the float32 nearest `value`: 0.999 for 0.99900001287.

    An ONNX attribute keeps 24 bits, and 1 − 0.99900001287 is off by 1.3e-5. Read this way, an update is the same
    before and after the graph went through a file.
    """
    return float(str(np.float32(value)))


@composite("GlobalNorm", infer=lambda inputs: [(ir.DataType.FLOAT, ir.Shape([]))])
def global_norm(op: Builder, *grads: Value) -> Value:
    """√Σ g² over all elements of all gradients, 0-d float32; narrower gradients are widened before they are squared.

    Source: torch.nn.utils.get_total_norm.
    """
    dtype = ir.DataType.DOUBLE if any(g.dtype == ir.DataType.DOUBLE for g in grads) else ir.DataType.FLOAT
    squares = [op.ReduceSumSquare(op.Cast(g, to=dtype), keepdims=0) for g in grads]
    return op.Cast(op.Sqrt(op.Sum(*squares)), to=ir.DataType.FLOAT)


@composite("SGD", like=[0, 4])
def sgd(
    op: Builder, param: Value, grad: Value, learning_rate: Value, scale: Value, momentum_buffer: Value | None = None,
    step: Value | None = None,
    *, momentum: float = 0.0, dampening: float = 0.0, nesterov: int = 0, weight_decay: float = 0.0,
) -> tuple[Value, ...]:  # fmt: skip
    """(param', buffer') as torch.optim.SGD; the buffer is absent where momentum is 0.

    At step 1 the buffer is the gradient itself, undampened; without `step` a zero buffer gives the same if
    dampening is 0.
    """
    p, g, buffer, learning_rate, scale, step = _wide(op, param, grad, momentum_buffer, learning_rate, scale, step)
    mu, damp, decay = decimal(momentum), decimal(dampening), decimal(weight_decay)
    g = g * scale
    if decay:
        g = g + decay * p
    if not mu:
        return (op.Cast(p - learning_rate * g, to=param.dtype),)
    keep: Value | float = mu
    share: Value | float = 1.0 - damp
    if step is not None:
        first = op.Equal(step, 1.0)
        keep, share = op.Where(first, op.const(0.0, p.dtype), mu), op.Where(first, op.const(1.0, p.dtype), share)
    buffer = keep * buffer + (g if step is None and not damp else share * g)
    g = g + mu * buffer if nesterov else buffer
    assert momentum_buffer is not None
    return op.Cast(p - learning_rate * g, to=param.dtype), op.Cast(buffer, to=momentum_buffer.dtype)


@composite("Adam", like=[0, 2, 3])
def adam(
    op: Builder, param: Value, grad: Value, m: Value, v: Value, learning_rate: Value, step: Value, scale: Value,
    *, alpha: float = 0.9, beta: float = 0.999, epsilon: float = 1e-8, weight_decay: float = 0.0,
    bias_correction: int = 1,
) -> tuple[Value, Value, Value]:  # fmt: skip
    """(param', m', v') as torch.optim.Adam: weight decay is added to the gradient (L2, coupled).

    Source: Kingma and Ba 2015.
    """
    p, g, m1, v1, learning_rate, step, scale = _wide(op, param, grad, m, v, learning_rate, step, scale)
    g = g * scale
    if weight_decay:
        g = g + decimal(weight_decay) * p
    m1, v1 = _moments(g, m1, v1, alpha, beta)
    p = p - learning_rate * _direction(op, m1, v1, step, alpha, beta, epsilon, bias_correction)
    return op.Cast(p, to=param.dtype), op.Cast(m1, to=m.dtype), op.Cast(v1, to=v.dtype)


@composite("AdamW", like=[0, 2, 3])
def adamw(
    op: Builder, param: Value, grad: Value, m: Value, v: Value, learning_rate: Value, step: Value, scale: Value,
    *, alpha: float = 0.9, beta: float = 0.999, epsilon: float = 1e-8, weight_decay: float = 0.0,
    bias_correction: int = 1, mode: int = 0,
) -> tuple[Value, Value, Value]:  # fmt: skip
    """(param', m', v') with decoupled weight decay λ (Loshchilov and Hutter 2019).

    mode 0, decay before the update, is torch.optim.AdamW: p·(1 − lr·λ) − lr·m̂ / (√v̂ + ε). mode 1, decay after it, is
    Hugging Face's former AdamW: p' = p − lr·√(1−βᵗ)/(1−αᵗ) · m / (√v + ε), then p' − lr·λ·p'. Both are those of
    onnxruntime's AdamOptimizer.
    """
    p, g, m1, v1, learning_rate, step, scale = _wide(op, param, grad, m, v, learning_rate, step, scale)
    m1, v1 = _moments(g * scale, m1, v1, alpha, beta)
    decay = decimal(weight_decay)
    if mode == 0:
        if decay:
            p = p * (1.0 - learning_rate * decay)
        p = p - learning_rate * _direction(op, m1, v1, step, alpha, beta, epsilon, bias_correction)
    else:
        size = learning_rate
        if bias_correction:
            size = learning_rate * op.Sqrt(_one_minus_power(op, beta, step)) / _one_minus_power(op, alpha, step)
        p = p - size * (m1 / (op.Sqrt(v1) + decimal(epsilon)))
        if decay:
            p = p - learning_rate * decay * p
    return op.Cast(p, to=param.dtype), op.Cast(m1, to=m.dtype), op.Cast(v1, to=v.dtype)


@composite("Lamb", like=[0, 2, 3])
def lamb(
    op: Builder, param: Value, grad: Value, m: Value, v: Value, learning_rate: Value, step: Value, scale: Value,
    *, alpha: float = 0.9, beta: float = 0.999, epsilon: float = 1e-6, weight_decay: float = 0.0,
    ratio_min: float = -_INF, ratio_max: float = _INF, bias_correction: int = 1,
) -> tuple[Value, Value, Value]:  # fmt: skip
    """(param', m', v'): u = m̂ / (√v̂ + ε) + λ·p, p' = p − lr·r·u with the trust ratio r = ‖p‖ / ‖u‖.

    r is kept in [ratio_min, ratio_max], and is 1 where either norm is 0. Source: You et al. 2020, algorithm 2 with
    φ(z) = z; onnxruntime's LambOptimizer.
    """
    update, m1, v1 = lamb_direction(
        op, param, grad, m, v, step, scale,
        alpha=alpha, beta=beta, epsilon=epsilon, weight_decay=weight_decay, bias_correction=bias_correction,
    )  # fmt: skip
    p, learning_rate = _wide(op, param, learning_rate)
    of_param, of_update = op.ReduceL2(p, keepdims=0), op.ReduceL2(update, keepdims=0)
    p = lamb_move(op, p, update, learning_rate, of_param, of_update, ratio_min=ratio_min, ratio_max=ratio_max)
    return op.Cast(p, to=param.dtype), op.Cast(m1, to=m.dtype), op.Cast(v1, to=v.dtype)


def lamb_direction(
    op: Builder, param: ir.Value, grad: ir.Value, m: ir.Value, v: ir.Value, step: ir.Value, scale: ir.Value,
    *, alpha: float, beta: float, epsilon: float, weight_decay: float, bias_correction: int,
) -> tuple[Value, Value, Value]:  # fmt: skip
    """(u, m', v') of LAMB: the part of the update in which each element stands for itself."""
    p, g, m1, v1, number, scale = _wide(op, param, grad, m, v, step, scale)
    m1, v1 = _moments(g * scale, m1, v1, alpha, beta)
    update = _direction(op, m1, v1, number, alpha, beta, epsilon, bias_correction)
    if weight_decay:
        update = update + decimal(weight_decay) * p
    return update, m1, v1


def lamb_move(
    op: Builder, p: Value, update: Value, learning_rate: Value, of_param: Value, of_update: Value,
    *, ratio_min: float, ratio_max: float,
) -> Value:  # fmt: skip
    """p' of LAMB, or a part of it, given the norms of the whole parameter and of its whole update."""
    defined = op.And(op.Greater(of_param, 0.0), op.Greater(of_update, 0.0))
    ratio = of_param / op.Where(defined, of_update, 1.0)
    if ratio_min > -_INF:
        ratio = op.Max(ratio, decimal(ratio_min))
    if ratio_max < _INF:
        ratio = op.Min(ratio, decimal(ratio_max))
    return p - learning_rate * op.Where(defined, ratio, 1.0) * update


def _wide(op: Builder, param: ir.Value, *others: ir.Value | None) -> list[Any]:
    """All operands in the dtype of the arithmetic: float64 for a float64 parameter, else float32."""
    dtype = ir.DataType.DOUBLE if param.dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT
    return [None if x is None else op.Cast(x, to=dtype) for x in (param, *others)]


def _moments(g: Value, m: Value, v: Value, alpha: float, beta: float) -> tuple[Value, Value]:
    """Running averages of the gradient and of its square."""
    a, b = decimal(alpha), decimal(beta)
    return a * m + (1.0 - a) * g, b * v + (1.0 - b) * (g * g)


def _direction(
    op: Builder, m: Value, v: Value, step: Value, alpha: float, beta: float, epsilon: float, bias_correction: int
) -> Value:
    """m̂ / (√v̂ + ε), the hats only with bias correction."""
    if not bias_correction:
        return m / (op.Sqrt(v) + decimal(epsilon))
    root = op.Sqrt(v) / op.Sqrt(_one_minus_power(op, beta, step))
    return m / _one_minus_power(op, alpha, step) / (root + decimal(epsilon))


def _one_minus_power(op: Builder, base: float, step: Value) -> Value:
    """1 − baseᵗ, as tanh(−x/2)·(1 + eˣ) with x = t·ln base: subtracting from 1 would lose four digits at t = 1."""
    x = step * (math.log(decimal(base)) if base else -_INF)
    return op.Tanh(-0.5 * x) * (1.0 + op.Exp(x))
