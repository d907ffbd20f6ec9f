"""Lowerings from ONNX operators and composites to ATen, one file per family."""

from ontrain.providers.torch.lowering import (
    attention,
    control,
    convolution,
    elementwise,
    head,
    indexing,
    layer_norm,
    loss,
    matmul,
    normalization,
    optimizer,
    random,
    reduction,
    rows,
    shape,
)
from ontrain.providers.torch.lowering.registry import find_lowering, lowers, lowers_composite

__all__ = [
    "attention",
    "control",
    "convolution",
    "elementwise",
    "find_lowering",
    "head",
    "indexing",
    "layer_norm",
    "loss",
    "lowers",
    "lowers_composite",
    "matmul",
    "normalization",
    "optimizer",
    "random",
    "reduction",
    "rows",
    "shape",
]
