"""The translation table, one module a family of operators."""

from ontrain.capture.aten import (
    activation,
    arithmetic,
    attention,
    convolution,
    creation,
    indexing,
    joining,
    linear,
    loss,
    normalization,
    pooling,
    recurrent,
    reduction,
    view,
)
from ontrain.capture.aten.registry import aten, find, table

__all__ = [
    "activation",
    "arithmetic",
    "aten",
    "attention",
    "convolution",
    "creation",
    "find",
    "indexing",
    "joining",
    "linear",
    "loss",
    "normalization",
    "pooling",
    "recurrent",
    "reduction",
    "table",
    "view",
]
