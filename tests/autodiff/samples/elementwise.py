"""Elementwise arithmetic and activations."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
import torch.nn.functional as F

from tests.autodiff.samples.sample import normal, sample, spread, uniform

_away = uniform(0.4, 2.0, 3, 4)
_unit = uniform(-0.8, 0.8, 3, 4)
_any = spread(3, 4)
_small = uniform(-0.01, 0.01, 3, 4)

MATH = [
    sample("Add", normal(2, 3, 4), normal(3, 1), twin=torch.add),
    sample("Add", normal(4), normal(2, 3, 4), twin=torch.add),
    sample("Sub", normal(3, 4), normal(4), twin=torch.sub),
    sample("Mul", normal(3, 4), normal(3, 1), twin=torch.mul),
    sample("Div", normal(3, 4), uniform(0.5, 2, 4), twin=torch.div),
    sample("Neg", normal(3, 4), twin=torch.neg),
    sample("Pow", uniform(0.3, 2, 3, 4), uniform(-2, 2, 4), twin=torch.pow),
    sample("Pow", normal(3, 4), np.array(2.0), twin=torch.pow, fixed=[1]),
    sample("Pow", normal(3, 4), np.array(3.0), twin=torch.pow, fixed=[1]),
    sample("Pow", normal(2, 4), np.array([0.0, 1.0, 2.0, 3.0]), twin=torch.pow, fixed=[1]),
    sample("Pow", normal(3, 4), np.array(3), twin=torch.pow),
    sample("Sqrt", _away, twin=torch.sqrt),
    sample("Exp", normal(3, 4), twin=torch.exp),
    sample("Log", _away, twin=torch.log),
    sample("Erf", normal(3, 4), twin=torch.erf),
    sample("Sin", normal(3, 4), twin=torch.sin),
    sample("Cos", normal(3, 4), twin=torch.cos),
    sample("Tan", _unit, twin=torch.tan),
    sample("Sinh", normal(3, 4), twin=torch.sinh),
    sample("Cosh", normal(3, 4), twin=torch.cosh),
    sample("Asin", _unit, twin=torch.asin),
    sample("Acos", _unit, twin=torch.acos),
    sample("Atan", normal(3, 4), twin=torch.atan),
    sample("Asinh", normal(3, 4), twin=torch.asinh),
    sample("Acosh", uniform(1.3, 3, 3, 4), twin=torch.acosh),
    sample("Atanh", _unit, twin=torch.atanh),
    sample("Abs", _any, twin=torch.abs),
    sample("Reciprocal", _away, twin=torch.reciprocal),
    sample("Max", normal(3, 4), normal(4), twin=torch.maximum),
    sample("Min", normal(3, 4), normal(3, 1), twin=torch.minimum),
    sample("Max", normal(3, 4), normal(4), normal(3, 4), twin=lambda a, b, c: torch.maximum(torch.maximum(a, b), c)),
    sample("Clip", _any, np.array(-1.0625), np.array(1.0625), twin=torch.clamp, fixed=[1, 2]),
    sample("Clip", _any, np.array(-1.0625), twin=lambda x, low: torch.clamp(x, low), fixed=[1]),
    sample("Clip", _any, np.array(-1.0625), np.array(1.0625), twin=torch.clamp),
    sample("Clip", _any, None, np.array(1.0625), twin=lambda x, low, high: torch.clamp(x, None, high)),
    sample("Sum", normal(3, 4), normal(4), normal(3, 1), twin=lambda a, b, c: a + b + c),
    sample("Mean", normal(3, 4), normal(4), normal(3, 1), twin=lambda a, b, c: (a + b + c) / 3),
    sample("Mod", _any, uniform(0.7, 0.9, 4), twin=torch.fmod, fmod=1),
    sample("Where", np.array([[True, False, True], [False, False, True]]), normal(2, 3), normal(3), twin=torch.where),
]

ACTIVATION = [
    sample("Tanh", normal(3, 4), twin=torch.tanh),
    sample("Sigmoid", normal(3, 4), twin=torch.sigmoid),
    sample("Relu", _any, twin=torch.relu),
    sample("LeakyRelu", _any, twin=lambda x: F.leaky_relu(x, 0.125), alpha=0.125),
    sample("Elu", _any, twin=lambda x: F.elu(x, 0.75), alpha=0.75),
    sample("Selu", _any, alpha=1.5, gamma=1.25,
           twin=lambda x: torch.where(x > 0, 1.25 * x, 1.25 * 1.5 * torch.expm1(x))),
    sample("Celu", _any, twin=lambda x: F.celu(x, 0.75), alpha=0.75, dtype="float32"),
    sample("Softplus", normal(3, 4), twin=F.softplus),
    sample("Softsign", _any, twin=F.softsign),
    sample("HardSigmoid", _any, twin=lambda x: torch.clamp(0.25 * x + 0.5, 0, 1), alpha=0.25, beta=0.5),
    sample("HardSwish", spread(4, 6), twin=F.hardswish),
    sample("Mish", normal(3, 4), twin=F.mish),
    sample("Gelu", normal(3, 4), twin=F.gelu),
    sample("Gelu", normal(3, 4), twin=lambda x: F.gelu(x, approximate="tanh"), approximate="tanh"),
    sample("Silu", normal(3, 4), twin=F.silu, domain="ontrain"),
    sample("SquaredError", _any, normal(3, 4), twin=partial(F.mse_loss, reduction="none"), domain="ontrain"),
    sample("Huber", _any, _small, domain="ontrain", delta=0.75,
           twin=partial(F.huber_loss, reduction="none", delta=0.75)),
    sample("Huber", _any, _small, domain="ontrain", delta=0.75, unit_slope=1,
           twin=partial(F.smooth_l1_loss, reduction="none", beta=0.75)),
    sample("SigmoidCrossEntropy", _any, uniform(0, 1, 3, 4), domain="ontrain",
           twin=partial(F.binary_cross_entropy_with_logits, reduction="none")),
    sample("BinaryCrossEntropy", uniform(0.1, 0.9, 3, 4), uniform(0, 1, 3, 4), domain="ontrain",
           twin=partial(F.binary_cross_entropy, reduction="none")),
    sample("Hardtanh", _any, np.array(-0.75), np.array(0.75), domain="ontrain", fixed=[1, 2],
           twin=lambda x, low, high: F.hardtanh(x, -0.75, 0.75)),
    sample("Hardtanh", _any, np.array(-0.75), domain="ontrain", fixed=[1], strict=1,
           twin=lambda x, low: torch.where(x > -0.75, x, -0.75)),
    sample("ReplaceNan", _any, twin=torch.clone, domain="ontrain", number=0.25),
    sample("PRelu", _any, normal(4), twin=lambda x, s: torch.where(x > 0, x, s * x)),
    sample("ThresholdedRelu", _any, twin=lambda x: torch.where(x > 0.75, x, 0.0), alpha=0.75),
    sample("Shrink", _any, twin=lambda x: F.softshrink(x, 0.75), bias=0.75, lambd=0.75),
    sample("Softmax", normal(2, 3, 4), twin=lambda x: torch.softmax(x, -1)),
    sample("Softmax", normal(2, 3, 4), twin=lambda x: torch.softmax(x, 1), axis=1),
    sample("LogSoftmax", normal(2, 3, 4), twin=lambda x: torch.log_softmax(x, -1)),
    sample("LogSoftmax", normal(2, 3, 4), twin=lambda x: torch.log_softmax(x, 0), axis=0),
    sample("Dropout", normal(3, 4), twin=torch.clone),
    sample("Dropout", normal(3, 4), np.array(0.25), np.array(False), twin=lambda x, r, t: x.clone(), fixed=[1]),
    sample(
        "Dropout", normal(3, 4), np.array(0.25), np.array(True), seed=3, fixed=[1],
        twin=lambda x, r, t: x * torch.tensor(np.random.RandomState(3).uniform(0, 1, (3, 4)) >= 0.25) / 0.75,
    ),
]  # fmt: skip
