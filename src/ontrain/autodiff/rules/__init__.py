"""Gradient rules of the standard operators and of the composites, by family."""

from ontrain.autodiff.rules import (
    activation,
    attention,
    conv,
    loss,
    math,
    matmul,
    normalization,
    pooling,
    reduce,
    scatter,
    shape,
)

__all__ = [
    "activation",
    "attention",
    "conv",
    "loss",
    "math",
    "matmul",
    "normalization",
    "pooling",
    "reduce",
    "scatter",
    "shape",
]
