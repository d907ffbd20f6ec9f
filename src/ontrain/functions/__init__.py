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
from ontrain.functions.specification import inline_specified, specified_body

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
    "inline_specified",
    "lookup",
    "loss",
    "normalization",
    "optimizer",
    "pooling",
    "specified_body",
]
