"""Draws from gamma, Dirichlet, Poisson and binomial distributions in standard operators, and their derivatives."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.functions.registry import composite
from ontrain.graph import Builder, repeat, static_dims
from ontrain.operators import Value

__all__: list[str] = []

Step = tuple[None, list[Value], list[Value]]
_ROUNDS = 16
"""Of a rejection that takes at least 95 % of its proposals: all fail once in 1e20."""


def _tiny(x: Value) -> float:
    return float(np.finfo(x.dtype.numpy()).tiny)


def _uniform(op: Builder, like: Value) -> Value:
    """Numbers of (0, 1]."""
    return 1.0 - op.RandomUniformLike(like, dtype=like.dtype.value)


@composite("StandardGamma", like=[0])
def standard_gamma(op: Builder, alpha: Value) -> Value:
    """Draws of shape alpha and scale one. Below one, those of alpha + 1 times a uniform draw to the power 1 / alpha.

    Source: Marsaglia and Tsang, A simple method for generating gamma variables, 2000.
    """
    one = op.const(1.0, alpha.dtype)
    small = op.Less(alpha, one)
    d = op.Where(small, alpha + 1.0, alpha) - 1 / 3
    c = 1.0 / op.Sqrt(d * 9.0)

    def proposal(
        op: Builder, at: Value, states: Sequence[Any], scanned: Sequence[Any], captured: Sequence[Any]
    ) -> Step:
        (drawn, going), (d, c) = states, captured
        x = op.RandomNormalLike(drawn, dtype=drawn.dtype.value)
        root = x * c + 1.0
        valid = op.Greater(root, op.const(0.0, drawn.dtype))
        cube = op.Where(valid, root * root * root, op.const(1.0, drawn.dtype))
        bound = x * x * 0.5 + d - d * cube + d * op.Log(cube)
        taken = op.And(op.And(valid, op.Less(op.Log(_uniform(op, drawn)), bound)), going)
        return None, [op.Where(taken, d * cube, drawn), op.And(going, op.Not(taken))], []

    going = op.Expand(op.const(np.array(True)), list(static_dims(alpha)))
    (drawn, _), _ = repeat(op, proposal, trip=_ROUNDS, carried=[d, going], captured=[d, c])
    power = op.Exp(op.Log(_uniform(op, alpha)) / op.Where(small, alpha, one))
    return op.Max(op.Where(small, drawn * power, drawn), op.const(_tiny(alpha), alpha.dtype))


@composite("Dirichlet", like=[0])
def dirichlet(op: Builder, alpha: Value) -> Value:
    """Gamma draws over their sum along the last axis."""
    drawn = op.composite("StandardGamma", alpha)
    return drawn / op.ReduceSum(drawn, [-1], keepdims=1)


def _tanh_sinh() -> tuple[Any, Any]:
    """Logarithms of places in (0, 1), and weights, for integrals that may be singular at both ends.

    Source: Takahasi and Mori, Double exponential formulas for numerical integration, 1974.
    """
    t = np.arange(-68, 69) / 16
    argument = math.pi / 2 * np.sinh(t)
    logs = -np.logaddexp(0, -2 * argument)
    weights = math.pi / 4 * np.cosh(t) / np.cosh(argument) ** 2 / 16
    return logs, weights


def _implicit(op: Builder, log_x: Value, alpha: Value, ratio: Callable[[Value], Value], centre: Value) -> Value:
    """−(1/α) ∫ ratio(t) (log t − centre) dw with t = x w^(1/α): minus ∂F/∂α over the density and x.

    ratio gives the density over t^(α−1), relative to that at x, of log t. Integrates over w from 0 to 1.
    """
    logs, weights = _tanh_sinh()
    log_t = op.Unsqueeze(log_x, [-1]) + op.const(logs, alpha.dtype) / op.Unsqueeze(alpha, [-1])
    parts = op.const(weights, alpha.dtype) * ratio(log_t) * (log_t - op.Unsqueeze(centre, [-1]))
    return -op.ReduceSum(parts, [-1], keepdims=0) / alpha


@composite("StandardGammaGrad", like=[0])
def standard_gamma_grad(op: Builder, alpha: Value, drawn: Value) -> Value:
    """The derivative of a draw by its shape: −∂F/∂α over the density, F the distribution function."""
    x = op.Unsqueeze(drawn, [-1])
    slope = _implicit(op, op.Log(drawn), alpha, lambda log_t: op.Exp(x - op.Exp(log_t)), op.composite("Digamma", alpha))
    return slope * drawn


@composite("DirichletGrad", like=[0])
def dirichlet_grad(op: Builder, x: Value, alpha: Value, total: Value) -> Value:
    """The derivative of a draw of Beta(alpha, total − alpha) by alpha, over 1 − x."""
    beta = op.Unsqueeze(total - alpha, [-1])
    rest = op.Unsqueeze(1.0 - x, [-1])

    def ratio(log_t: Value) -> Value:
        left = op.Max(1.0 - op.Exp(log_t), op.const(_tiny(x), x.dtype))
        return op.Exp((beta - 1.0) * op.Log(left / rest))

    centre = op.composite("Digamma", alpha) - op.composite("Digamma", total)
    centre = centre + op.Expand(op.const(0.0, x.dtype), list(static_dims(x)))
    return _implicit(op, op.Log(x), alpha, ratio, centre) * x / (1.0 - x)


@composite("Poisson", like=[0])
def poisson(op: Builder, rate: Value) -> Value:
    """How many values of the distribution function lie below a uniform draw."""
    zero = op.const(0.0, rate.dtype)
    log_rate = op.Log(op.Max(rate, op.const(_tiny(rate), rate.dtype)))
    most = op.ReduceMax(rate, keepdims=0)
    trip = op.Cast(op.Ceil(most + op.Sqrt(most) * 12.0 + 30.0), to=ir.DataType.INT64)

    def log_ratio(op: Builder, k: Value, log_rate: Value) -> Value:
        return log_rate - op.Log(k + 1.0)

    return op.Where(op.Equal(rate, zero), zero, _inverted(op, -rate, trip, log_ratio, [log_rate]))


@composite("Binomial", like=[0])
def binomial(op: Builder, count: Value, chance: Value) -> Value:
    """How many values of the distribution function lie below a uniform draw; for the less likely of both outcomes."""
    half, zero = op.const(0.5, chance.dtype), op.const(0.0, chance.dtype)
    turned = op.Greater(chance, half)
    p = op.Max(op.Where(turned, 1.0 - chance, chance), op.const(_tiny(chance), chance.dtype))
    odds = op.Log(p) - op.Log(1.0 - p)

    def log_ratio(op: Builder, k: Value, count: Value, odds: Value) -> Value:
        left = op.Greater(count, k)
        more = op.Where(left, (count - k) / (k + 1.0), op.const(1.0, k.dtype))
        return op.Where(left, op.Log(more) + odds, op.const(-math.inf, k.dtype))

    trip = op.Cast(op.ReduceMax(count, keepdims=0), to=ir.DataType.INT64)
    shape = np.broadcast_shapes(static_dims(count), static_dims(chance))
    start = op.Expand(count * op.Log(1.0 - p), shape)
    drawn = _inverted(op, start, trip, log_ratio, [op.Expand(count, shape), op.Expand(odds, shape)])
    drawn = op.Min(drawn, count)
    return op.Max(op.Where(turned, count - drawn, drawn), zero)


def _inverted(
    op: Builder, start: Value, trip: Value, log_ratio: Callable[..., Value], captured: Sequence[Value]
) -> Value:
    """The number of k whose distribution function is below a uniform draw.

    Args:
        op: the builder.
        start: the logarithm of the probability of zero.
        trip: how many k are looked at.
        log_ratio: of the probability of k + 1 over that of k, given the builder, k and what is captured.
        captured: what log_ratio reads.
    """
    draw = op.RandomUniformLike(start, dtype=start.dtype.value)

    def step(op: Builder, at: Value, states: Sequence[Any], scanned: Sequence[Any], captured: Sequence[Any]) -> Step:
        (total, log_mass, number), (draw, *others) = states, captured
        total = total + op.Exp(log_mass)
        above = op.Cast(op.GreaterOrEqual(draw, total), to=number.dtype)
        k = op.Cast(at, to=number.dtype)
        return None, [total, log_mass + log_ratio(op, k, *others), number + above], []

    nothing = op.Expand(op.const(0.0, start.dtype), list(static_dims(start)))
    (_, _, number), _ = repeat(op, step, trip=trip, carried=[nothing, start, nothing], captured=[draw, *captured])
    return number
