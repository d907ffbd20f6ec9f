"""Activations, softmax and dropout."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.operators.emit import Value
from ontrain.operators.gradients import Adjoints, Op, elementwise, gradient
from ontrain.operators.halves import HALVES
from ontrain.operators.record import (
    DOMAIN,
    ELEMENTWISE,
    POINTWISE,
    WHEREVER,
    Chance,
    Outrun,
    Precision,
    Rows,
    Stock,
    define,
)

__all__: list[str] = []


def sigmoid(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Of numpy arrays."""
    y: np.ndarray[Any, Any] = 1 / (1 + np.exp(-x))
    return y


define("Hardmax", zero_gradient=WHEREVER, stock=Stock.COMPARED, outrun=Outrun.ALONE)
define("SwiGLU")
define("Swish", ELEMENTWISE, precision=Precision.FOLLOWS, stock=Stock.COMPARED)
define("GeluGrad", POINTWISE, domain=DOMAIN)
define("SiluGrad", POINTWISE, domain=DOMAIN)
define("MishGrad", ELEMENTWISE, domain=DOMAIN)
for name in ("HardSigmoidGrad", "HardSwishGrad"):
    define(name, ELEMENTWISE, domain=DOMAIN, precision=Precision.FOLLOWS)
for name in ("ReluGrad", "LeakyReluGrad", "EluGrad", "HardtanhGrad", "TanhGrad", "SigmoidGrad"):
    define(name, POINTWISE, domain=DOMAIN, precision=Precision.FOLLOWS)
define("SoftmaxGrad", domain=DOMAIN, overwrites=(0,))
define("LogSoftmaxGrad", domain=DOMAIN, overwrites=(0,))
define("DropoutGrad", domain=DOMAIN)
define(
    "Tanh",
    POINTWISE,
    precision=Precision.FOLLOWS,
    function=np.tanh,
    epilogue_of=("Conv", "Gemm"),
    marks_gelu=True,
    stock=Stock.KERNEL,
)


@gradient("Tanh")
def tanh(op: Op, dy: Value, x: Value) -> Adjoints:
    """The composite TanhGrad, from the saved result."""
    return op.composite("TanhGrad", dy, op.outputs[0])


define(
    "Sigmoid",
    POINTWISE,
    precision=Precision.FOLLOWS,
    function=sigmoid,
    epilogue_of=("Conv", "Gemm"),
    stock=Stock.KERNEL,
)


@gradient("Sigmoid")
def sigmoid_gradient(op: Op, dy: Value, x: Value) -> Adjoints:
    """The composite SigmoidGrad, from the saved result."""
    return op.composite("SigmoidGrad", dy, op.outputs[0])


define("Softplus", POINTWISE, stock=Stock.KERNEL, ahead_from=1 << 12)
elementwise("Softplus", lambda op, x, y: op.Sigmoid(x))
define("Softsign", ELEMENTWISE, stock=Stock.COMPARED)
elementwise("Softsign", lambda op, x, y: op.Pow(1 + op.Abs(x), -2.0))
define("Elu", POINTWISE, precision=Precision.FOLLOWS, stock=Stock.KERNEL)


@gradient("Elu")
def elu(op: Op, dy: Value, x: Value, *, alpha: float) -> Adjoints:
    """The composite EluGrad."""
    return op.composite("EluGrad", dy, x, alpha=alpha)


define("Celu", POINTWISE, stock=Stock.COMPARED)


@gradient("Celu")
def celu(op: Op, dy: Value, x: Value, *, alpha: float) -> Adjoints:
    """The composite EluGrad of exp(x / alpha)."""
    return op.composite("EluGrad", dy, x, alpha=alpha, input_scale=1 / alpha)


define("Selu", POINTWISE, precision=Precision.FOLLOWS, stock=Stock.KERNEL)


@gradient("Selu")
def selu(op: Op, dy: Value, x: Value, *, alpha: float, gamma: float) -> Adjoints:
    """The composite EluGrad, scaled."""
    return op.composite("EluGrad", dy, x, alpha=alpha, scale=gamma)


define("Relu", POINTWISE, precision=Precision.FOLLOWS, epilogue_of=("Conv", "Gemm"), stock=Stock.KERNEL)


@gradient("Relu")
def relu(op: Op, dy: Value, x: Value) -> Adjoints:
    """The composite ReluGrad, from the saved result."""
    return op.composite("ReluGrad", dy, op.outputs[0])


define("ThresholdedRelu", ELEMENTWISE, stock=Stock.COMPARED)


@gradient("ThresholdedRelu")
def thresholded_relu(op: Op, dy: Value, x: Value, *, alpha: float) -> Adjoints:
    """dy where x > alpha."""
    return op.Where(op.Greater(x, alpha), dy, 0.0)


define("LeakyRelu", POINTWISE, precision=Precision.FOLLOWS, epilogue_of=("Conv",), stock=Stock.KERNEL)


@gradient("LeakyRelu")
def leaky_relu(op: Op, dy: Value, x: Value, *, alpha: float) -> Adjoints:
    """The composite LeakyReluGrad."""
    return op.composite("LeakyReluGrad", dy, x, alpha=alpha)


define("PRelu", ELEMENTWISE, precision=Precision.FOLLOWS, overwrites=(0,), stock=Stock.KERNEL, ahead_from=1 << 13)


@gradient("PRelu")
def prelu(op: Op, dy: Value, x: Value, slope: Value) -> Adjoints:
    """dy where x > 0, and what is left of it times the slope, which gets dy · x where x ≤ 0."""
    above = op.composite("ReluGrad", dy, x)
    return above + (dy - above) * slope, dy * op.Min(x, 0.0) if op.wanted[1] else None


define("Shrink", ELEMENTWISE)


@gradient("Shrink")
def shrink(op: Op, dy: Value, x: Value, *, bias: float, lambd: float) -> Adjoints:
    """dy outside [−lambd, lambd]."""
    return op.Where(op.Greater(op.Abs(x), lambd), dy, 0.0)


define("HardSigmoid", ELEMENTWISE, precision=Precision.FOLLOWS, epilogue_of=("Conv",), stock=Stock.KERNEL)


@gradient("HardSigmoid")
def hard_sigmoid(op: Op, dy: Value, x: Value, *, alpha: float, beta: float) -> Adjoints:
    """The composite HardSigmoidGrad."""
    return op.composite("HardSigmoidGrad", dy, x, alpha=alpha, beta=beta)


define("HardSwish", POINTWISE, precision=Precision.FOLLOWS, epilogue_of=("Conv",), stock=Stock.KERNEL)


@gradient("HardSwish")
def hard_swish(op: Op, dy: Value, x: Value) -> Adjoints:
    """The composite HardSwishGrad."""
    return op.composite("HardSwishGrad", dy, x)


def _are_exact(numbers: Sequence[float], *dtypes: ir.DataType) -> bool:
    with np.errstate(over="ignore"):
        return all((np.asarray(numbers).astype(dtype.numpy()) == numbers).all() for dtype in dtypes)


define(
    "Hardtanh",
    ELEMENTWISE,
    overwrites=(0,),
    domain=DOMAIN,
    precision=Precision.FOLLOWS,
    weightless=(1, 2),
    stock=Stock.BODY,
)


@gradient("Hardtanh", domain=DOMAIN)
def hardtanh(
    op: Op, dy: Value, x: Value, low: Value | None = None, high: Value | None = None, *, strict: int = 0
) -> Adjoints:  # fmt: skip
    """dy to x where low < x < high, and nothing to the bounds; the composite HardtanhGrad where they are known.

    A NaN passes dy on, unless `strict`.

    The saved result lies between the bounds where x does, unless a bound was rounded to the result's precision.
    """
    known = [float(v.const_value.numpy()) for v in (low, high) if v is not None and v.const_value is not None]
    if strict:
        reached = op.Greater(x, low) if low is not None else None
        within = op.Less(x, high) if high is not None else None
        inside = op.And(reached, within) if reached is not None and within is not None else reached or within
        return dy if inside is None else op.Where(inside, dy, 0.0), None, None
    # Attributes are in single precision, in which another number would be compared with.
    if len(known) == 2 and _are_exact(known, ir.DataType.FLOAT):
        saved = op.outputs[0] if _are_exact(known, *HALVES) else x
        return op.composite("HardtanhGrad", dy, saved, low=known[0], high=known[1]), None, None
    below = op.LessOrEqual(x, low) if low is not None else None
    above = op.GreaterOrEqual(x, high) if high is not None else None
    outside = op.Or(below, above) if below is not None and above is not None else below or above
    return dy if outside is None else op.Where(outside, 0.0, dy), None, None


define("Mish", ELEMENTWISE, precision=Precision.FOLLOWS, stock=Stock.COMPARED, ahead_from=1 << 13)


@gradient("Mish")
def mish(op: Op, dy: Value, x: Value) -> Adjoints:
    """The composite MishGrad."""
    return op.composite("MishGrad", dy, x)


define("Gelu", POINTWISE, precision=Precision.FOLLOWS, marks_gelu=True, epilogue_of=("Gemm",), stock=Stock.KERNEL)


@gradient("Gelu")
def gelu(op: Op, dy: Value, x: Value, *, approximate: str) -> Adjoints:
    """The composite GeluGrad."""
    return op.composite("GeluGrad", dy, x, approximate=approximate)


define("Silu", POINTWISE, domain=DOMAIN, precision=Precision.FOLLOWS, epilogue_of=("Conv", "Gemm"), stock=Stock.BODY)


@gradient("Silu", domain=DOMAIN)
def silu(op: Op, dy: Value, x: Value) -> Adjoints:
    """The composite SiluGrad."""
    return op.composite("SiluGrad", dy, x)


define("Softmax", overwrites=(0,), rows=Rows.ALONG_AXIS, stock=Stock.KERNEL)


@gradient("Softmax")
def softmax(op: Op, dy: Value, x: Value, *, axis: int) -> Adjoints:
    """The composite SoftmaxGrad, from the saved probabilities."""
    return op.composite("SoftmaxGrad", dy, op.outputs[0], axis=axis)


define("LogSoftmax", overwrites=(0,), rows=Rows.ALONG_AXIS, stock=Stock.KERNEL)


@gradient("LogSoftmax")
def log_softmax(op: Op, dy: Value, x: Value, *, axis: int) -> Adjoints:
    """The composite LogSoftmaxGrad, from the saved log-probabilities."""
    return op.composite("LogSoftmaxGrad", dy, op.outputs[0], axis=axis)


define(
    "Dropout",
    ELEMENTWISE,
    chance=Chance.IN_TRAINING,
    precision=Precision.FOLLOWS,
    settings=(1, 2),
    stock=Stock.KERNEL,
)


def is_hardsigmoid(alpha: float, beta: float) -> bool:
    """Whether a HardSigmoid of these numbers is PyTorch's hardsigmoid, as float32 holds a sixth."""
    return math.isclose(alpha, 1 / 6, rel_tol=1e-6) and beta == 0.5


def dropped_share(node: ir.Node) -> float:
    """Return the share that a Dropout drops: none outside of training mode."""
    _, ratio, training = [*node.inputs, None, None][:3]
    return _constant(ratio, 0.5) if _constant(training, 0.0) else 0.0


def _constant(value: ir.Value | None, default: float) -> float:
    if value is None:
        return default
    if value.const_value is None:
        raise ValueError("dropout's ratio and mode must be constant")
    return float(value.const_value.numpy())


@gradient("Dropout")
def dropout(
    op: Op, dy: Value, x: Value, ratio: Value | None = None, training: Value | None = None,
    *, seed: int | None = None,
) -> Adjoints:  # fmt: skip
    """dy through the forward pass's own mask, scaled by 1 / (1 − ratio); dy itself outside training."""
    on, rate = op.constant(2), op.constant(1) if ratio is None or ratio.const_value is not None else None
    if on is None or not on:
        return dy, None, None
    if rate is None and ratio is not None:
        return op.Where(op.saved(1), dy / (1 - op.Cast(ratio, to=dy.dtype)), 0.0), None, None
    share = 0.5 if rate is None else float(rate)
    return op.composite("DropoutGrad", dy, op.saved(1), ratio=share) if share else dy, None, None
