"""Composite operators with bodies of plain ONNX operators."""

from ontrain.functions import (
    activation,
    attention,
    convolution,
    detach,
    embedding,
    loss,
    normalization,
    optimizer,
    pooling,
)
from ontrain.functions.registry import Composite, attributes_of, composite, composites, inline, inline_all, lookup

__all__ = [
    "Composite",
    "activation",
    "attention",
    "attributes_of",
    "composite",
    "composites",
    "convolution",
    "detach",
    "embedding",
    "inline",
    "inline_all",
    "lookup",
    "loss",
    "normalization",
    "optimizer",
    "pooling",
]
