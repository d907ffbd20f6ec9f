"""A model of PyTorch's own compiler benchmarks: how to make it small, and its batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

__all__ = ["BATCH_SIZES", "Batch", "SuiteModel", "loss_of", "without_dropout"]

BATCH_SIZES = (4, 6, 5)
"""Of the three steps. BatchNorm over two values in single precision would be compared with its rounding."""

Batch = dict[str, torch.Tensor]
"""Arguments of forward by name; `target` is what a classifier's output is compared with outside of forward."""


@dataclass(frozen=True)
class SuiteModel:
    """A model of the suite.

    Attributes:
        name: as the lists of benchmarks/dynamo name it.
        suite: "huggingface" or "timm".
        make: a new module with random weights, in training mode.
        batch: batch(size) returns the arguments of forward.
    """

    name: str
    suite: str
    make: Callable[[], nn.Module]
    batch: Callable[[int], Batch]


def loss_of(model: Callable[..., Any], batch: Batch) -> torch.Tensor:
    """Return the loss that the model returns, or the cross entropy of the logits that it returns."""
    arguments = {name: value for name, value in batch.items() if name != "target"}
    if "target" not in batch:
        loss: torch.Tensor = model(**arguments).loss
        return loss
    logits = model(*arguments.values())
    logits = logits if isinstance(logits, torch.Tensor) else logits[0]
    return nn.functional.cross_entropy(logits, batch["target"])


def without_dropout(module: nn.Module) -> nn.Module:
    """Turn off every kind of dropout that the modules hold as a number of their own."""
    for child in module.modules():
        if isinstance(child, nn.modules.dropout._DropoutNd):
            child.p = 0.0
        for name, value in vars(child).items():
            if "drop" in name and isinstance(value, float):
                setattr(child, name, 0.0)
    return module
