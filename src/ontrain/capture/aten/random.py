"""Random numbers. A provider draws them from the run's own stream, so a resumed run draws what it would have drawn.

No two draws of eager PyTorch and of a graph are equal; their distributions are.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ontrain.capture.aten.registry import aten
from ontrain.capture.context import AtenBuilder, Dim
from ontrain.graph import Role, set_role
from ontrain.operators import HALVES, Value
from ontrain.sizes import Size

__all__: list[str] = []

_INT64 = ir.DataType.INT64


def _uniform(op: AtenBuilder, dtype: ir.DataType | None = None) -> Value:
    """Numbers of [0, 1) in the shape of the current node's result."""
    dtype = op.dtype if dtype is None else dtype
    like = op.expand(op.cast(0, dtype), op.shape, [])
    return op.RandomUniformLike(like, dtype=dtype.value)


def _normal(op: AtenBuilder) -> Value:
    like = op.expand(op.cast(0, op.dtype), op.shape, [])
    return op.RandomNormalLike(like, dtype=op.dtype.value)


def _affine(op: AtenBuilder, x: Value, scale: Value | float, shift: Value | float) -> Value:
    x = x if scale == 1 else x * op.cast(scale, x.dtype)
    return x if shift == 0 else x + op.cast(shift, x.dtype)


@aten("ontrain::reseed")
def reseed(op: AtenBuilder, is_set: bool) -> Value:
    """Note whether what is drawn from here on would be drawn from a state that forward sets."""
    op.reseeded = is_set
    return op.const(np.zeros(0, np.float32))


@aten("ontrain::mask")
def mask(op: AtenBuilder, attention: Value | None, shape: object, index: int) -> Value:
    """A mask that is drawn before the run, as an input of the graph."""
    if op.is_inner:
        raise op.refuse("a branch or a loop draws a mask by numpy", "a mask is drawn before a run", "draw it outside")
    dims = [str(size) if isinstance(size, Size) else int(size) for size in op.shape]
    value = Value(name=op.fresh(f"mask_{index}"), type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape(dims))
    op.graph.inputs.append(set_role(value, Role.INPUT))
    op.masks[index] = value, op.val.shape, attention
    return value


@aten("rand", "rand_like")
def rand(op: AtenBuilder, *_: object, **__: object) -> Value:
    return _uniform(op)


@aten("uniform")
def uniform(op: AtenBuilder, x: Value, low: float = 0.0, high: float = 1.0) -> Value:
    return op.constant_in(_affine(op, _uniform(op), high - low, low), x)


@aten("randn", "randn_like")
def randn(op: AtenBuilder, *_: object, **__: object) -> Value:
    return _normal(op)


@aten("normal_functional", "normal.default", "normal.out")
def normal_in_place(op: AtenBuilder, x: Value, mean: float = 0.0, std: float = 1.0) -> Value:
    return op.constant_in(_affine(op, _normal(op), std, mean), x)


@aten("normal.Tensor_Tensor", "normal.Tensor_float", "normal.float_Tensor", "normal.float_float")
def normal(op: AtenBuilder, mean: Value | float, std: Value | float = 1.0, *_: object, **__: object) -> Value:
    by, around = (op.composite("Detach", op.cast(number, op.dtype)) for number in (std, mean))
    return op.constant_in(_normal(op) * by + around, mean, std)


@aten("log_normal")
def log_normal(op: AtenBuilder, x: Value, mean: float = 1.0, std: float = 2.0) -> Value:
    return op.constant_in(op.Exp(_affine(op, _normal(op), std, mean)), x)


@aten("exponential")
def exponential(op: AtenBuilder, x: Value, rate: float = 1.0) -> Value:
    return op.constant_in(op.Log(op.cast(1, op.dtype) - _uniform(op)) * op.cast(-1 / rate, op.dtype), x)


@aten("cauchy")
def cauchy(op: AtenBuilder, x: Value, median: float = 0.0, sigma: float = 1.0) -> Value:
    drawn = op.Tan((_uniform(op) - op.cast(0.5, op.dtype)) * op.cast(np.pi, op.dtype))
    return op.constant_in(_affine(op, drawn, sigma, median), x)


@aten("geometric")
def geometric(op: AtenBuilder, x: Value, p: float) -> Value:
    dtype = ir.DataType.DOUBLE
    tries = op.Log(op.cast(1, dtype) - _uniform(op, dtype)) * op.cast(1 / np.log1p(-p), dtype)
    return op.constant_in(op.cast(op.Max(op.Ceil(tries), op.cast(1, dtype)), op.dtype), x)


@aten("bernoulli.default", "bernoulli.p", "bernoulli.float", "bernoulli.Tensor")
def bernoulli(op: AtenBuilder, x: Value, p: Value | float | None = None) -> Value:
    chance = op.cast(x if p is None else p, ir.DataType.FLOAT)
    return op.constant_in(op.cast(op.Less(_uniform(op, ir.DataType.FLOAT), chance), op.dtype), x, p)


@aten("randint.default", "randint.low", "randint_like.default", "randint_like.low_dtype", "random.from", "random.to")
def randint(op: AtenBuilder, *arguments: object, **_: object) -> Value:
    numbers = [a for a in arguments if isinstance(a, int)]
    low, high = (0, numbers[0]) if len(numbers) == 1 else numbers[:2]
    dtype = ir.DataType.DOUBLE
    drawn = op.Floor(_affine(op, _uniform(op, dtype), high - low, low))
    return op.cast(op.Min(drawn, op.cast(high - 1, dtype)), op.dtype)


@aten("randperm.default")
def randperm(op: AtenBuilder, count: Dim, **_: object) -> Value:
    """The order of random numbers."""
    keys = _uniform(op, ir.DataType.DOUBLE)
    size = op.symbols.emit(op, count) if not isinstance(count, int) else op.const(np.array([count], np.int64))
    return op.cast(op.TopK(keys, size, axis=0, outputs=2)[1], op.dtype)


@aten("multinomial")
def multinomial(op: AtenBuilder, weights: Value, count: Dim, replacement: bool = False) -> Value:
    """The places of the greatest log-weights plus Gumbel's noise: draws without replacement; with it, one at a time."""
    rows = op.input_shape(0)
    weights = op.cast(weights, ir.DataType.FLOAT) if weights.dtype in HALVES else weights  # which draw few numbers
    logits = op.Unsqueeze(op.Log(weights), [-2])
    draws = count if replacement else 1
    like = op.expand(op.cast(0, weights.dtype), [*rows[:-1], draws, rows[-1]], [])
    uniform = op.RandomUniformLike(like, dtype=weights.dtype.value)
    tiny = op.cast(float(np.finfo(weights.dtype.numpy()).tiny), weights.dtype)
    noisy = logits - op.Log(op.Max(op.Neg(op.Log(op.Max(uniform, tiny))), tiny))
    if replacement:
        return op.ArgMax(noisy, axis=-1, keepdims=0)
    places = op.TopK(op.Squeeze(noisy, [-2]), op.sizes([count]), axis=-1, outputs=2)[1]
    return op.typed(places, [*rows[:-1], count])


@aten("rrelu", "rrelu_with_noise", "rrelu_with_noise_functional")
def rrelu(op: AtenBuilder, x: Value, *rest: float, **_: object) -> tuple[Value, None] | Value:
    named = "noise" in str(op.node.target)
    lower, upper, training = (*rest[1 if named else 0 :], *(1 / 8, 1 / 3, False)[len(rest) - named :])[:3]
    slope = op.cast((lower + upper) / 2, x.dtype)
    if training:
        slope = _affine(op, _uniform(op), upper - lower, lower)
    y = op.Where(op.LessOrEqual(x, op.cast(0, x.dtype)), x * slope, x)
    return (y, None) if "functional" in str(op.node.target) else y


@aten("_standard_gamma")
def standard_gamma(op: AtenBuilder, alpha: Value, generator: object = None) -> Value:
    return op.composite("StandardGamma", alpha)


@aten("_standard_gamma_grad")
def standard_gamma_grad(op: AtenBuilder, alpha: Value, drawn: Value) -> Value:
    return op.composite("StandardGammaGrad", alpha, drawn)


@aten("_sample_dirichlet")
def sample_dirichlet(op: AtenBuilder, alpha: Value, generator: object = None) -> Value:
    return op.composite("Dirichlet", alpha)


@aten("_dirichlet_grad")
def dirichlet_grad(op: AtenBuilder, x: Value, alpha: Value, total: Value) -> Value:
    return op.composite("DirichletGrad", x, alpha, total)


@aten("poisson")
def poisson(op: AtenBuilder, rate: Value, generator: object = None) -> Value:
    return op.composite("Poisson", rate)


@aten("binomial")
def binomial(op: AtenBuilder, count: Value, chance: Value, generator: object = None) -> Value:
    return op.composite("Binomial", count, chance)
