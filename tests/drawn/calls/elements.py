"""Functions of elements: arithmetic of two broadcast tensors, and activations."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.drawn.calls.call import Call, call
from tests.drawn.draw import Draw

SHAPES = [(3, 4), (1, 4), (3, 1), (4,), ()]


def _arithmetic(factor: float, rounding: str | None) -> dict:
    """Functions of two tensors by name."""
    return {
        "add": lambda x, y: torch.add(x, y, alpha=factor),
        "sub": lambda x, y: torch.sub(x, y, alpha=factor),
        "rsub": lambda x, y: torch.rsub(x, y, alpha=factor),
        "div": lambda x, y: torch.div(x, y, rounding_mode=rounding),
        "remainder": torch.remainder,
        "fmod": torch.fmod,
        "float_power": lambda x, y: torch.float_power(x.abs() + 0.1, y),
        "lerp": lambda x, y: torch.lerp(x, y, factor),
        "lerp by a tensor": lambda x, y: torch.lerp(x, y, x.sigmoid()),
        "addcmul": lambda x, y: torch.addcmul(x, x, y, value=factor),
        "addcdiv": lambda x, y: torch.addcdiv(x, x, y, value=factor),
        "copysign": torch.copysign,
        "hypot": torch.hypot,
        "logaddexp": lambda x, y: torch.logaddexp2(x, y) + torch.logaddexp(x, y),
        "clamp": lambda x, y: torch.clamp(x, min=y) + torch.clamp(x, max=y),
        "maximum": lambda x, y: torch.maximum(x, y) * torch.fmin(x, y),
        "atan2": torch.atan2,
        "xlogy": lambda x, y: torch.xlogy(x, y.abs() + 0.1),
        "where": lambda x, y: torch.where(x > y, x, 2.0) + torch.where(x < y, 1, y),
        "heaviside": lambda x, y: torch.heaviside(x.detach(), y) * x + torch.ldexp(x, y.round()),
        "nextafter": lambda x, y: torch.nextafter(x.detach(), y) * x,
    }


@call.share(2)
def arithmetic(draw: Draw) -> Call:
    """Of two tensors that are broadcast, with factors and roundings."""
    factor, rounding = draw.choice([1, 2, -0.5, 0.3]), draw.choice([None, "floor", "trunc"])
    functions = _arithmetic(factor, rounding)
    name = draw.choice(list(functions))
    return Call(
        f"{name} {factor} {rounding}",
        functions[name],
        lambda: (draw.tensor(*draw.choice(SHAPES)), draw.tensor(*draw.choice(SHAPES))),
    )


def _activations(bound: float, axis: int, threshold: int, power: float) -> dict:
    """Functions of a tensor by name."""
    return {
        "elu": lambda x: F.elu(x, bound),
        "gelu": F.gelu,
        "gelu of tanh": lambda x: F.gelu(x, approximate="tanh"),
        "leaky_relu": lambda x: F.leaky_relu(x, bound),
        "hardtanh": lambda x: F.hardtanh(x, -bound, bound),
        "softplus": lambda x: F.softplus(x * 9, beta=bound, threshold=threshold),
        "selu": F.selu,
        "silu": F.silu,
        "mish": F.mish,
        "glu": lambda x: F.glu(x, axis or -1),
        "hardswish": lambda x: F.hardswish(x * 3),
        "hardsigmoid": lambda x: F.hardsigmoid(x * 3),
        "softmin": lambda x: F.softmin(x, axis),
        "log_softmax": lambda x: F.log_softmax(x, axis, dtype=torch.float64),
        "relu6": lambda x: F.relu6(x * 5),
        "prelu": lambda x: F.prelu(x, torch.tensor([bound])),
        "rrelu": lambda x: F.rrelu(x, bound / 4, bound),
        "softsign": F.softsign,
        "threshold": lambda x: F.threshold(x, 0.1, bound),
        "normalize": lambda x: F.normalize(x, p=power, dim=axis, eps=0.5),
        "cosine_similarity": lambda x: F.cosine_similarity(x, x.flip(0) * 2, dim=axis, eps=0.5),
        "pairwise_distance": lambda x: F.pairwise_distance(x, x.flip(0), p=power, keepdim=True),
        "sigmoid": lambda x: torch.sigmoid(x * 50) + F.logsigmoid(x * 50),
    }


@call.share(2)
def activation(draw: Draw) -> Call:
    """Activations and norms with each of their settings."""
    settings = (
        draw.choice([0.3, 1.0, 2.0]), draw.choice([0, 1, -1]), draw.choice([20, 2]), draw.choice([1.0, 2.0, 3.0]),
    )  # fmt: skip
    functions = _activations(*settings)
    name = draw.choice(list(functions))
    return Call(f"{name} {settings}", functions[name], lambda: draw.tensor(draw.integer(2, 5), 4))
