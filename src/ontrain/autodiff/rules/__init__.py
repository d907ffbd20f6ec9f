"""Gradient rules of the standard operators and of the composites, by family."""

from ontrain.autodiff.rules import (
    activation,
    attention,
    control,
    conv,
    custom,
    einsum,
    loss,
    math,
    matmul,
    normalization,
    pooling,
    reduce,
    rows,
    scatter,
    shape,
)

__all__ = [
    "activation",
    "attention",
    "control",
    "conv",
    "custom",
    "einsum",
    "loss",
    "math",
    "matmul",
    "normalization",
    "pooling",
    "reduce",
    "rows",
    "scatter",
    "shape",
]
