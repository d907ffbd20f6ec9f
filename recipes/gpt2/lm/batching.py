"""Which blocks of the training text make up which update."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from lm.arguments import Arguments
from lm.text import Ids, blocks
from ontrain.distributed import Processes
from ontrain.errors import InputError, OptionError

__all__ = ["Batches", "epoch_order", "training_batches"]


@dataclass(frozen=True)
class Batches:
    """A shuffled text, the same for every engine, and joined over the processes for any number of them.

    What is left over at the end of an epoch, too little for an update, waits for the order of another epoch.

    Attributes:
        rows: the text's blocks, [blocks, tokens].
        batch: rows that one process takes at a time.
        accumulation: batches an update.
        rank, processes: which process of how many this is.
        seed: of the order.
        total: updates of the whole run.
    """

    rows: Ids
    batch: int
    accumulation: int
    rank: int
    processes: int
    seed: int
    total: int = 0

    @property
    def rows_an_update(self) -> int:
        """Over all processes."""
        return self.batch * self.processes * self.accumulation

    @property
    def tokens_an_update(self) -> int:
        """Over all processes."""
        return self.rows_an_update * int(self.rows.shape[1])

    @property
    def updates_an_epoch(self) -> int:
        """Whole ones."""
        return len(self.rows) // self.rows_an_update

    def of_update(self, number: int) -> Iterator[torch.Tensor]:
        """Yield this process's batches of an update, counted from 0 over all epochs: int64 [batch, tokens]."""
        epoch, place = divmod(number, self.updates_an_epoch)
        order = epoch_order(len(self.rows), self.seed, epoch)
        joined = order[place * self.rows_an_update : (place + 1) * self.rows_an_update]
        for micro in joined.reshape(self.accumulation, self.processes, self.batch):
            yield torch.from_numpy(self.rows[micro[self.rank]])


def epoch_order(count: int, seed: int, epoch: int) -> Ids:
    """Return the order of `count` blocks in an epoch: a permutation that depends on nothing else."""
    return np.random.default_rng((seed, epoch)).permutation(count)


def training_batches(arguments: Arguments, ids: Ids, size: int, processes: Processes) -> Batches:
    """Cut the training text into blocks of `size` tokens.

    Raises:
        InputError: it is too short for a single update.
        OptionError: the run would have no update.
    """
    made = Batches(
        blocks(ids, size), arguments.per_gpu_train_batch_size, arguments.gradient_accumulation_steps, processes.rank,
        processes.world_size, arguments.seed,
    )  # fmt: skip
    if not made.updates_an_epoch:
        raise InputError(
            f"{arguments.train_data_file} has {len(made.rows):,} blocks of {size:,} tokens, an update takes "
            f"{made.rows_an_update:,}",
            reason=f"{made.batch} rows a batch, {made.accumulation} batches an update, {made.processes} processes",
            way_out="lower --gradient_accumulation_steps, --per_gpu_train_batch_size or --block_size, or use more text",
        )
    total = arguments.max_steps
    if total <= 0:
        total = int(made.updates_an_epoch * arguments.num_train_epochs)
    if total < 1:
        raise OptionError(
            f"--num_train_epochs {arguments.num_train_epochs:g} of {made.updates_an_epoch} updates is no update",
            way_out="train for longer",
        )
    return Batches(**{**vars(made), "total": total})
