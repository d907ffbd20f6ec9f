"""A model of another package: a module from tensors to a loss, and its batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

__all__ = ["MODELS", "Batch", "Loss", "PackageModel", "add", "ids", "image", "numbers", "undropped", "unevenly"]

Batch = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class PackageModel:
    """A model of a package.

    Attributes:
        package: as an index of packages names it.
        imports: what must be importable.
        make: returns the module, from the tensors of a batch to its loss.
        batch: batch(size) returns the tensors.
    """

    package: str
    imports: tuple[str, ...]
    make: Callable[[], nn.Module]
    batch: Callable[[int], Batch]


MODELS: dict[str, PackageModel] = {}


class Loss(nn.Module):
    """A module, or several by name, with a function of them and the batch to what is squared and averaged."""

    def __init__(self, function: Callable[..., Any] | None = None, **modules: Any) -> None:
        super().__init__()
        self.function = function
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, *batch: torch.Tensor) -> torch.Tensor:
        y = self.function(self, *batch) if self.function is not None else self.model(*batch)
        y = y if isinstance(y, torch.Tensor) else y[0]
        return y if y.ndim == 0 else y.pow(2).mean()


def add(name: str, package: str, make: Callable[[], nn.Module], batch: Callable[[int], Batch], *imports: str) -> None:
    """Put a model into the list; it imports its package by the package's name unless others are given."""
    MODELS[name] = PackageModel(package, imports or (package.replace("-", "_"),), make, batch)


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    """Normal numbers that depend on shape and seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def unevenly(y: torch.Tensor) -> torch.Tensor:
    """Normalised rows by a weight for each place: the mean of their squares is one, and its gradient rounding."""
    return y * torch.linspace(0.5, 1.5, y.shape[-1], dtype=y.dtype)


def ids(high: int, *shape: int) -> torch.Tensor:
    """Whole numbers below `high`."""
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(sum(shape)))


def image(channels: int = 3, size: int = 32) -> Callable[[int], Batch]:
    """Batches of images."""
    return lambda n: (numbers(n, channels, size, size),)


def undropped(architecture: str, **settings: Any) -> nn.Module:
    """Make a model of transformers by its class, from settings of its configuration, that drops nothing."""
    import transformers

    cls = getattr(transformers, architecture)
    config = cls.config_class(**settings)
    for name, value in vars(config).items():
        if "drop" in name and isinstance(value, float):
            setattr(config, name, 0.0)
    model: nn.Module = cls(config)
    return model
