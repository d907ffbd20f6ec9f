"""A data loader that knows where it is, so that a resumed run sees the batches that the stopped one would have seen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from ontrain.errors import CheckpointError, OptionError
from ontrain.training.data.transfer import on_device

__all__ = ["ResumableDataLoader"]

_POSITION, _SETTING = ("epoch", "samples"), ("size", "seed", "shuffle")
_OURS = ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last", "generator", "persistent_workers")


class ResumableDataLoader:
    """Batches of a map-style dataset in an order that seed and epoch decide.

    Iterating gives what is left of the present epoch, and moves on to the next. `state_dict` is plain JSON: give it to
    `ORTTrainer.save_checkpoint` as part of `user_dict`. A batch counts as seen when it is handed out, however many
    worker processes have fetched ahead. The position fits any batch size and any number of processes.

    What the dataset itself draws at random is its own affair: drawn from a generator that index and epoch seed it is
    the same in a resumed run; for the global generators of this process there is `random_state`.

    Args:
        dataset: has a length and is indexed.
        batch_size: samples a batch of this process.
        shuffle: False keeps the dataset's order.
        seed: of the order; the same in all processes.
        drop_last: leave out samples of an epoch that fill no batch.
        rank: this process; each batch of all processes together is shared out among them.
        world_size: how many processes there are. Where the last samples cannot be shared out evenly, some from the
            epoch's beginning are used again.
        device: the device of the batches. The next batch is copied to a GPU while the step on the present batch runs.
            None leaves batches where the dataset has them.
        **options: for `torch.utils.data.DataLoader`: num_workers, collate_fn, pin_memory and so on.

    Raises:
        OptionError: a value is out of range, there is no such device, the dataset is empty or has no length, or an
            option is not torch's or is decided here.
    """

    def __init__(
        self, dataset: Any, batch_size: int = 1, *, shuffle: bool = True, seed: int = 0, drop_last: bool = False,
        rank: int = 0, world_size: int = 1, device: str | torch.device | None = None, **options: Any,
    ) -> None:  # fmt: skip
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__") or not len(dataset):
            raise OptionError(
                f"a {type(dataset).__name__} gives no samples by number", way_out="give a dataset with a length above 0"
            )
        for name, value, least in (("batch_size", batch_size, 1), ("seed", seed, 0), ("world_size", world_size, 1)):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise OptionError(f"{name} is {value!r}", way_out=f"give a whole number from {least}")
        if rank not in range(world_size):
            raise OptionError(f"rank is {rank!r}", way_out=f"of {world_size} processes: 0 to {world_size - 1}")
        for name in options:
            if name in _OURS:
                raise OptionError(f"{name!r} is decided by the loader", way_out="leave it out")
        self.dataset, self.batch_size, self.shuffle, self.seed = dataset, batch_size, shuffle, seed
        self.drop_last, self.rank, self.world_size = drop_last, rank, world_size
        self._options, self._device = options, _checked(device)
        self._epoch, self._samples = 0, 0
        self._loader([])  # lets torch refuse options now

    @property
    def epoch(self) -> int:
        """Number of finished epochs: the epoch of the next batch, unless an epoch's last batch was just handed out."""
        return self._epoch

    def __len__(self) -> int:
        """Batches of a whole epoch."""
        step = self.batch_size * self.world_size
        return len(self.dataset) // step if self.drop_last else -(-len(self.dataset) // step)

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches that are left of the present epoch, collated as torch's loader does."""
        shares = self._shares()
        batches: Iterable[Any] = self._loader([mine for _, mine in shares])
        if self._device is not None:
            batches = on_device(batches, self._device)
        for (count, _), batch in zip(shares, batches, strict=True):
            self._samples += count
            yield batch
        self._epoch, self._samples = self._epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        """Return the position behind the last batch that was handed out, and what the order depends on."""
        return {
            "epoch": self._epoch, "samples": self._samples,
            "size": len(self.dataset), "seed": self.seed, "shuffle": self.shuffle,
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where the loader was that gave this state; call it before iterating.

        Raises:
            CheckpointError: it is no such state, or that of another order: the seed, or the dataset's size differs.
        """
        have = self.state_dict()
        for name in _POSITION:
            value = state.get(name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise CheckpointError(
                    f"the data position has {name} {value!r}", way_out="give what state_dict returned"
                )
        for name in _SETTING:
            if state.get(name) != have[name]:
                raise CheckpointError(
                    f"the data position is of {name} {state.get(name)!r}, this loader has {have[name]!r}",
                    reason="its batches would be others",
                    way_out="make the loader as it was, or start an epoch anew",
                )
        self._epoch, self._samples = state["epoch"], state["samples"]

    def _shares(self) -> list[tuple[int, list[int]]]:
        """The batches that are left: samples of all processes together, and the numbers of this one's."""
        size, step = len(self.dataset), self.batch_size * self.world_size
        order = np.arange(size)
        if self.shuffle:
            order = np.random.Generator(np.random.PCG64([self.seed, self._epoch])).permutation(size)
        shares = []
        for start in range(self._samples, size, step):
            together = order[start : start + step]
            if len(together) < step and self.drop_last:
                break
            each = -(-len(together) // self.world_size)
            filled = np.concatenate([together, np.resize(order, each * self.world_size - len(together))])
            shares.append((len(together), filled[self.rank * each : (self.rank + 1) * each].tolist()))
        return shares

    def _loader(self, batches: list[list[int]]) -> DataLoader[Any]:
        # A generator of its own: torch draws a seed for its workers, which would move the global one.
        generator = torch.Generator().manual_seed(self.seed)
        try:
            return DataLoader(self.dataset, batch_sampler=batches, generator=generator, **self._options)
        except (TypeError, ValueError) as error:
            raise OptionError(
                "torch's DataLoader refuses the options", reason=str(error), way_out="see torch.utils.data.DataLoader"
            ) from error


def _checked(device: str | torch.device | None) -> torch.device | None:
    if device is None:
        return None
    try:
        target = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise OptionError(f"device is {device!r}", reason=str(error), way_out="use 'cpu' or 'cuda'") from error
    if target.type == "cuda" and not torch.cuda.is_available():
        raise OptionError(
            f"device {device!r} is not available", reason="torch sees no CUDA device", way_out="use 'cpu'"
        )
    return target
