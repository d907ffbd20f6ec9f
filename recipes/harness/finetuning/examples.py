"""Tokenised examples as arrays, the order in which an epoch takes them, and batches as long as their longest row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.files import digest
from harness.finetuning.flags import Settings

PAD_TO = 16
"""Lengths of batches are multiples of this: a plan serves many batches, and few tokens are padding."""
_SORTED_TOGETHER = 50  # batches, under --group_by_length; Hugging Face's number

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Examples:
    """N examples of at most L tokens.

    Attributes:
        inputs: input_ids, attention_mask and token_type_ids, each [N, L]; real tokens stand before padding.
        targets: under the names of forward's arguments, each [N]: class numbers, positions or float32.
    """

    inputs: Mapping[str, NDArray[np.int32]]
    targets: Mapping[str, NDArray[Any]]

    def __len__(self) -> int:
        return len(self.inputs["input_ids"])

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """[N]: tokens that are no padding."""
        return self.inputs["attention_mask"].sum(axis=1, dtype=np.int64)

    def batch(self, rows: Rows, *, targets: bool = True, whole: bool = False) -> dict[str, Tensor]:
        """Return the rows as forward's arguments, int64 [len(rows), t]; regression targets are float32.

        t is L if `whole`, else the longest row's length rounded up.
        """
        width = self.inputs["input_ids"].shape[1]
        if not whole:
            width = min(width, -(-int(self.lengths[rows].max()) // PAD_TO) * PAD_TO)
        batch = {name: torch.from_numpy(array[rows, :width].astype(np.int64)) for name, array in self.inputs.items()}
        for name, array in self.targets.items() if targets else ():
            batch[name] = torch.from_numpy(array[rows].astype(np.float32 if array.dtype.kind == "f" else np.int64))
        return batch

    def drawn(self, count: int, seed: int) -> Examples:
        """Return `count` of the examples, in their order; the seed decides which."""
        rows = np.sort(np.random.default_rng(seed).permutation(len(self))[:count])
        return Examples(*({name: array[rows] for name, array in of.items()} for of in (self.inputs, self.targets)))

    def digest(self) -> str:
        """Name the content by a hash."""
        arrays = sorted({**self.inputs, **self.targets}.items())
        return digest(*(part for name, array in arrays for part in (name, array.tobytes())))


def epoch_updates(examples: Examples, settings: Settings, epoch: int) -> Iterator[list[Rows]]:
    """Yield the row numbers of each update's micro-batches, in all processes; seed and epoch decide the order."""
    rng = np.random.default_rng([settings.seed, epoch])
    order, size = rng.permutation(len(examples)), settings.per_gpu_train_batch_size
    if settings.group_by_length:
        parts = _cut(order, size * _SORTED_TOGETHER)
        order = np.concatenate([part[np.argsort(examples.lengths[part], kind="stable")] for part in parts])
    batches = _cut(order, size)
    if settings.group_by_length:
        batches = [batches[number] for number in rng.permutation(len(batches))]
    yield from _cut(batches, settings.micro_batches)


def _cut(items: Any, size: int) -> list[Any]:
    return [items[start : start + size] for start in range(0, len(items), size)]
