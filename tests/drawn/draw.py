"""A seeded source of choices, sizes and tensors: the same seed, family and number draw the same case again."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch

__all__ = ["Draw"]

Item = TypeVar("Item")
Sizes = tuple[int, ...]


class Draw:
    """What a case is drawn from.

    Args:
        seed: of the whole run.
        family: the case's family, so that families draw apart from one another.
        number: the case's number in the run.
    """

    def __init__(self, seed: int, family: str, number: int) -> None:
        self._random = random.Random(f"{seed} {family} {number}")
        self._seed = self._random.getrandbits(62)
        self._generator = torch.Generator().manual_seed(self._seed)
        self._numpy = np.random.default_rng(self._seed)

    @contextmanager
    def alone(self, dtype: torch.dtype = torch.float64) -> Iterator[None]:
        """Modules start from weights of this draw and in `dtype`; what others draw and start with is as before."""
        before = torch.get_default_dtype()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed)
            torch.set_default_dtype(dtype)
            try:
                yield
            finally:
                torch.set_default_dtype(before)

    def choice(self, options: Sequence[Item]) -> Item:
        """An option."""
        return self._random.choice(options)

    def flag(self, probability: float = 0.5) -> bool:
        """Whether."""
        return self._random.random() < probability

    def maybe(self, setting: Item, probability: float = 0.5) -> Item | None:
        """The setting, or None."""
        return setting if self.flag(probability) else None

    def integer(self, low: int, high: int) -> int:
        """A whole number, both bounds among them."""
        return self._random.randint(low, high)

    def fraction(self, low: float, high: float) -> float:
        """A number of two digits between the bounds."""
        return round(self._random.uniform(low, high), 2)

    def sizes(self, count: int, low: int, high: int) -> Sizes:
        """So many whole numbers."""
        return tuple(self.integer(low, high) for _ in range(count))

    def sample(self, items: Sequence[Item], count: int) -> list[Item]:
        """So many different items, in any order."""
        return self._random.sample(items, count)

    def axes(self, rank: int, count: int) -> Sizes:
        """So many different axes, some counted from the end."""
        return tuple(axis - rank * self.flag() for axis in self.sample(range(rank), count))

    def tensor(self, *shape: int) -> torch.Tensor:
        """Normal numbers in float64."""
        return torch.randn(shape, generator=self._generator, dtype=torch.float64)

    def uniform(self, *shape: int) -> torch.Tensor:
        """Numbers between 0 and 1 in float64."""
        return torch.rand(shape, generator=self._generator, dtype=torch.float64)

    def labels(self, classes: int, *shape: int, low: int = 0) -> torch.Tensor:
        """Whole numbers from `low` to below `classes`, in int64."""
        return torch.randint(low, classes, shape, generator=self._generator)

    def array(self, *shape: int, dtype: Any = np.float32) -> np.ndarray:
        """Normal numbers."""
        return self._numpy.standard_normal(shape).astype(dtype)

    def indices(self, low: int, high: int, shape: Sequence[int] | int) -> np.ndarray:
        """Whole numbers from `low` to below `high`, in int64."""
        return self._numpy.integers(low, high, shape)
