"""HDF5 files to training batches: files and rows in an order that the seed decides, resumed at any batch.

    data = PretrainingData(folder, batch_size=32, seed=42, rank=rank, world_size=world_size)
    for batch in data:  # without end, epoch after epoch
        ...
        save(data.position)
    data = PretrainingData(folder, batch_size=32, seed=42, rank=rank, world_size=world_size, position=position)

Each epoch shuffles the files. In each round of it every rank takes one, shuffles its rows, and cuts as many batches as
the shortest file of the round gives, so that ranks stay in step and batches of one shape; the next epoch leaves out
others. The next file is read while the present one is trained on.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from corpus.hdf5 import read, shape
from corpus.instances import Instances
from harness.files import DataError
from harness.processes import Team
from torch import Tensor

IGNORED = -1
"""The label of a token that is not predicted, upstream's ignore_index."""


class Batch(NamedTuple):
    """B sequences of L tokens, int64, in the order of the model's arguments.

    Attributes:
        input_ids, segment_ids: [B, L].
        input_mask: [B, L]: 1 at tokens, 0 at padding; its sum is the number of real tokens.
        masked_lm_labels: [B, L]: the word that stood there, IGNORED where none is predicted.
        next_sentence_labels: [B]: 1 where the second segment is from elsewhere.
    """

    input_ids: Tensor
    segment_ids: Tensor
    input_mask: Tensor
    masked_lm_labels: Tensor
    next_sentence_labels: Tensor


class Micro(NamedTuple):
    """A micro-batch, and how its labels relate to those of a mean one (1 where there is a single one)."""

    batch: Batch
    share: float = 1.0


class PretrainingData:
    """Batches of `batch_size` sequences out of the files of `folder` whose name has "training" in it.

    Args:
        seed: decides all orders; the same on all ranks.
        rank, world_size: this process, and how many take files in turn.
        max_seq_length: refuse files of another length; None takes what they have.
        max_predictions_per_seq: use no more than that many labels a sequence; None takes all.
        vocab_size: refuse numbers beyond it.
        position: where to go on, what `position` was. It fits any rank. Of another world size it leads to the file
            where that run was, as near as whole rounds allow, and a part of the files is seen again.
    """

    def __init__(
        self, folder: Path, *, batch_size: int, seed: int, rank: int = 0, world_size: int = 1,
        max_seq_length: int | None = None, max_predictions_per_seq: int | None = None, vocab_size: int | None = None,
        position: Mapping[str, int] | None = None,
    ) -> None:  # fmt: skip
        if not 0 <= rank < world_size:
            raise DataError(f"rank {rank} is none of {world_size} processes")
        self.files, self._counts = _files(folder, batch_size, max_seq_length)
        self.batch_size, self.seed, self.rank, self.world_size = batch_size, seed, rank, world_size
        self.most, self.vocab_size = max_predictions_per_seq, vocab_size
        self._epoch, self._round, self._batch = _resumed(position, world_size, self.rounds)

    @property
    def rounds(self) -> int:
        """How many files each rank reads an epoch; with more ranks than files some read the same."""
        return max(len(self.files) // self.world_size, 1)

    @property
    def position(self) -> dict[str, int]:
        """Where the next batch lies, for JSON; the same on all ranks."""
        return {"epoch": self._epoch, "round": self._round, "batch": self._batch, "world_size": self.world_size}

    def __iter__(self) -> Iterator[Batch]:
        """Yield batches without end, from the position on."""
        with ThreadPoolExecutor(1, "next file") as reader:
            coming = self._ask(reader, self._epoch, self._round)
            while True:
                instances = coming.result()
                following = (self._epoch, self._round + 1) if self._round + 1 < self.rounds else (self._epoch + 1, 0)
                coming = self._ask(reader, *following)
                order = self._generator(self._epoch, self._round, self.rank).permutation(len(instances.input_ids))
                shortest = min(self._counts[index] for index in self._members(self._epoch, self._round))
                while (self._batch + 1) * self.batch_size <= shortest:
                    start = self._batch * self.batch_size
                    self._batch += 1
                    yield _batch(instances, order[start : start + self.batch_size], self.most)
                (self._epoch, self._round), self._batch = following, 0

    def _generator(self, *numbers: int) -> np.random.Generator:
        return np.random.Generator(np.random.PCG64([self.seed, *numbers]))

    def _ask(self, reader: ThreadPoolExecutor, epoch: int, number: int) -> Future[Instances]:
        return reader.submit(read, self.files[self._members(epoch, number)[self.rank]], self.vocab_size)

    def _members(self, epoch: int, number: int) -> list[int]:
        """The file of each rank in a round."""
        order = self._generator(epoch).permutation(len(self.files))
        return [int(order[(number * self.world_size + rank) % len(order)]) for rank in range(self.world_size)]


def gather(batches: Iterator[Batch], count: int, team: Team) -> tuple[list[Micro], int, int]:
    """Return an update's micro-batches with their shares of its labels, its sequences and tokens in all processes."""
    parts: list[Batch] = []
    failed: DataError | None = None
    try:
        parts += itertools.islice(batches, count)
    except DataError as error:
        failed = error
    labels = [int((batch.masked_lm_labels != IGNORED).sum()) for batch in parts]
    sequences = sum(len(batch.input_ids) for batch in parts)
    tokens = sum(int(batch.input_mask.sum()) for batch in parts)
    everywhere = team.total([sum(labels), sequences, tokens, len(parts), failed is not None])
    if everywhere[4]:
        raise failed or DataError("another process could not read its data")
    mean = max(everywhere[0] / everywhere[3], 1.0)
    micros = [Micro(batch, labelled / mean) for batch, labelled in zip(parts, labels, strict=True)]
    return micros, int(everywhere[1]), int(everywhere[2])


def _files(folder: Path, batch_size: int, max_seq_length: int | None) -> tuple[list[Path], list[int]]:
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    files = sorted(path for path in folder.iterdir() if "training" in path.name and path.suffix in (".hdf5", ".h5"))
    if not files:
        raise DataError(
            f"{folder} has no HDF5 file with training in its name: "
            "prepare.py --action create_hdf5_files makes {dataset}_training_0.hdf5 and so on"
        )
    counts = []
    # All headers now: a file that does not fit should not end a run after a night.
    for path in files:
        count, length = shape(path)
        counts.append(count)
        if count < batch_size:
            raise DataError(f"{path} holds {count:,} instances, less than a batch of {batch_size}: make fewer shards")
        if max_seq_length not in (None, length):
            raise DataError(f"{path} holds sequences of {length} tokens, but --max_seq_length is {max_seq_length}")
    return files, counts


def _resumed(position: Mapping[str, int] | None, world_size: int, rounds: int) -> tuple[int, int, int]:
    if position is None:
        return 0, 0, 0
    try:
        epoch, number, batch, before = (int(position[name]) for name in ("epoch", "round", "batch", "world_size"))
        if min(epoch, number, batch) < 0 or before < 1:
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise DataError(f"{dict(position)} is no position in the data") from None
    if before != world_size:
        number, batch = number * before // world_size, 0
    return (epoch, number, batch) if number < rounds else (epoch + 1, 0, 0)


def _batch(instances: Instances, rows: np.ndarray, most: int | None) -> Batch:
    rows = np.sort(rows)  # the order within a batch means nothing, and memory is read forwards
    ids = torch.from_numpy(instances.input_ids[rows].astype(np.int64))
    positions = torch.from_numpy(instances.masked_lm_positions[rows, :most].astype(np.int64))
    words = torch.from_numpy(instances.masked_lm_ids[rows, :most].astype(np.int64))
    # Positions are 0 after the last; what is written there is taken back, since [CLS] is never predicted.
    labels = torch.full_like(ids, IGNORED).scatter_(1, positions, words)
    labels[:, 0] = IGNORED
    segments, mask, follows = (
        torch.from_numpy(values[rows].astype(np.int64))
        for values in (instances.segment_ids, instances.input_mask, instances.next_sentence_labels)
    )
    return Batch(ids, segments, mask, labels, follows)
