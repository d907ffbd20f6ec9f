"""Samples of like complexity at the same time on all processes, so that none waits for the others.

Names and arguments are those of onnxruntime.training.utils.data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import Sampler

from ontrain.errors import OptionError

__all__ = ["LoadBalancingDistributedBatchSampler", "LoadBalancingDistributedSampler"]


class LoadBalancingDistributedSampler(Sampler[int]):
    """Sorts samples by complexity and deals them out: the processes' n-th samples are neighbours in that order.

    Every process must use the same arguments but for `rank`. Call `set_epoch` before each epoch for another order.

    Args:
        dataset: map-style: it has a length and is indexed.
        complexity_fn: complexity_fn(sample) is a whole number, such as the length of a sequence; called once a sample.
        world_size: number of processes; by default that of the process group.
        rank: of this process; by default its own in the process group.
        shuffle: deal the tuples of neighbours out in random order, or the groups if there are any.
        group_size: sort within groups of so many samples only; None sorts all.
        seed: of the order; the epoch is added.
        drop_last: leave out what does not fill a tuple; otherwise samples from the front are used twice.
        random_level: from 0, sorted by complexity, to 1, complexity blurred by its whole range.

    Raises:
        OptionError: a value out of range, an empty dataset, or no process group to ask.
    """

    def __init__(
        self, dataset: Any, complexity_fn: Callable[..., int], world_size: int | None = None, rank: int | None = None,
        shuffle: bool = True, group_size: int | None = None, seed: int = 0, drop_last: bool = False,
        random_level: float = 0,
    ) -> None:  # fmt: skip
        if (world_size is None or rank is None) and not (dist.is_available() and dist.is_initialized()):
            raise OptionError(
                "world_size or rank is not given", way_out="give both, or initialise the process group first"
            )
        self.world_size = dist.get_world_size() if world_size is None else world_size
        self.rank = dist.get_rank() if rank is None else rank
        if not 0 <= self.rank < self.world_size:
            raise OptionError(
                f"rank is {self.rank}", way_out=f"of {self.world_size} processes: 0 to {self.world_size - 1}"
            )
        if not 0 <= random_level <= 1:
            raise OptionError(f"random_level is {random_level}", way_out="give a number from 0 to 1")
        if group_size is not None and group_size < 1:
            raise OptionError(f"group_size is {group_size}", way_out="give a positive number, or None for one group")
        if len(dataset) < (self.world_size if drop_last else 1):
            raise OptionError(
                f"the dataset has {len(dataset)} samples",
                way_out=f"there must be one for each of {self.world_size} processes",
            )
        _check_function("complexity_fn", complexity_fn)
        self.dataset, self.complexity_fn = dataset, complexity_fn
        self.shuffle, self.group_size, self.seed = shuffle, group_size, seed
        self.drop_last, self.random_level, self.epoch = drop_last, random_level, 0
        rounded = math.floor if drop_last else math.ceil
        self.num_samples = rounded(len(dataset) / self.world_size)
        self._complexities: np.ndarray[Any, Any] | None = None

    def dealt(self) -> np.ndarray[Any, Any]:
        """Return the epoch's sample numbers, int64 [samples of a process, processes]."""
        if self._complexities is None:
            complexities = [int(self.complexity_fn(self.dataset[index])) for index in range(len(self.dataset))]
            self._complexities = np.array(complexities, np.int64)
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = self._sorted(self._complexities, generator)
        total = self.num_samples * self.world_size
        rows: np.ndarray[Any, Any] = np.resize(order, total).reshape(self.num_samples, self.world_size)
        if self.shuffle and self.group_size is None:
            rows = rows[torch.randperm(self.num_samples, generator=generator, device="cpu").numpy()]
        return rows

    def _sorted(self, complexities: np.ndarray[Any, Any], generator: torch.Generator) -> np.ndarray[Any, Any]:
        spread = int((complexities.max() - complexities.min()) * self.random_level)
        blurred = complexities
        if spread:
            blurred = (
                complexities
                + torch.randint(spread + 1, (len(complexities),), generator=generator, device="cpu").numpy()
            )
        size = self.group_size or len(complexities)
        groups = [
            start + np.argsort(blurred[start : start + size], kind="stable")
            for start in range(0, len(complexities), size)
        ]
        if self.shuffle and self.group_size is not None:
            groups = [groups[i] for i in torch.randperm(len(groups), generator=generator, device="cpu").tolist()]
        return np.concatenate(groups)

    def __iter__(self) -> Iterator[int]:
        return iter(self.dealt()[:, self.rank].tolist())

    def __len__(self) -> int:
        return self.num_samples

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of an epoch; equal numbers give equal orders."""
        self.epoch = epoch


class LoadBalancingDistributedBatchSampler(Sampler[list[int]]):
    """Batches of varying size over a `LoadBalancingDistributedSampler`, as many on each process.

    Args:
        sampler: gives the order.
        batch_fn: batch_fn(sample numbers of one process) → batches, lists of sample numbers.
        drop_last: end on all processes after as many batches as the shortest process has. Otherwise processes with
            fewer batches repeat some.

    Raises:
        OptionError: the sampler is of another kind or drops samples itself, or `batch_fn` made no batch.
    """

    def __init__(
        self, sampler: LoadBalancingDistributedSampler, batch_fn: Callable[[list[int]], Sequence[list[int]]],
        drop_last: bool = False,
    ) -> None:  # fmt: skip
        if not isinstance(sampler, LoadBalancingDistributedSampler):
            raise OptionError(
                f"the sampler is a {type(sampler).__name__}", way_out="give a LoadBalancingDistributedSampler"
            )
        if sampler.drop_last:
            raise OptionError("the sampler drops samples", way_out="set drop_last on the batch sampler only")
        _check_function("batch_fn", batch_fn)
        self.sampler, self.batch_fn, self.drop_last = sampler, batch_fn, drop_last
        self._make()

    def _make(self) -> None:
        rows = self.sampler.dealt()
        batches = [list(self.batch_fn(rows[:, rank].tolist())) for rank in range(self.sampler.world_size)]
        counts = [len(batch) for batch in batches]
        if not min(counts):
            raise OptionError(
                f"batch_fn made no batch for rank {counts.index(0)}", way_out="let it return a list of lists"
            )
        self.total_batch = min(counts) if self.drop_last else max(counts)
        own = batches[self.sampler.rank]
        self._own = [own[i % len(own)] for i in range(self.total_batch)]

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self._own)

    def __len__(self) -> int:
        return self.total_batch

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of an epoch and make its batches."""
        self.sampler.set_epoch(epoch)
        self._make()


def _check_function(name: str, function: object) -> None:
    if not callable(function):
        raise OptionError(f"{name} is {function!r}", way_out="give a function")
