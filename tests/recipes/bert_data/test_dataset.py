"""Batches out of HDF5 folders: what is in them, in which order, and where a run goes on."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from corpus.hdf5 import write
from corpus.instances import Instances
from dataset import IGNORED, Batch, PretrainingData
from harness.files import DataError

COUNTS = (9, 12, 10, 16, 8)  # instances in each file


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five training files; an instance's second token says file and row."""
    folder = tmp_path_factory.mktemp("hdf5")
    for number, count in enumerate(COUNTS):
        ids = np.zeros((count, 8), np.int32)
        ids[:, :5] = [2, 0, 4, 3, 3]
        ids[:, 1] = 100 * (number + 1) + np.arange(count)
        positions = np.tile(np.array([2, 0, 0], np.int32), (count, 1))
        positions[::2, 1] = 4  # every second row predicts two
        words = np.where(positions > 0, ids[:, 1:2] + 1000, 0).astype(np.int32)
        mask = np.tile(np.array([1] * 5 + [0] * 3, np.int8), (count, 1))
        segments = np.tile(np.array([0] * 4 + [1] + [0] * 3, np.int8), (count, 1))
        follows = (np.arange(count) % 2).astype(np.int8)
        write(folder / f"x_training_{number}.hdf5", Instances(ids, mask, segments, positions, words, follows))
    write(folder / "x_test_0.hdf5", Instances(ids, mask, segments, positions, words, follows))
    return folder


def take(data: Iterable[Batch], count: int) -> list[Batch]:
    return list(itertools.islice(iter(data), count))


def names(batches: Iterable[Batch]) -> list[list[int]]:
    """Which instances each batch holds."""
    return [batch.input_ids[:, 1].tolist() for batch in batches]


def test_a_batch_has_labels_where_words_are_predicted_and_nowhere_else(folder: Path) -> None:
    (batch,) = take(PretrainingData(folder, batch_size=4, seed=1), 1)
    assert all(tensor.dtype == torch.int64 for tensor in batch)
    assert batch.input_mask.sum() == 20
    for row in range(4):
        name = int(batch.input_ids[row, 1])
        second = name + 1000 if name % 2 == 0 else IGNORED
        assert batch.masked_lm_labels[row].tolist() == [-1, -1, name + 1000, -1, second, -1, -1, -1]
        assert batch.segment_ids[row].tolist() == [0, 0, 0, 0, 1, 0, 0, 0]
        assert batch.next_sentence_labels[row] == name % 2
    (fewer,) = take(PretrainingData(folder, batch_size=4, seed=1, max_predictions_per_seq=1), 1)
    assert (fewer.masked_lm_labels != IGNORED).sum() == 4


def test_an_epoch_holds_each_instance_once_but_for_the_ends_of_files(folder: Path) -> None:
    data = PretrainingData(folder, batch_size=4, seed=1)
    per_epoch = sum(count // 4 for count in COUNTS)
    both = names(take(data, 2 * per_epoch))
    first, second = both[:per_epoch], both[per_epoch:]
    for epoch in (first, second):
        seen = [name for batch in epoch for name in batch]
        assert len(set(seen)) == len(seen)
        assert {name // 100: sum(1 for number in seen if number // 100 == name // 100) for name in seen} == {
            number + 1: count // 4 * 4 for number, count in enumerate(COUNTS)
        }
        assert all(len({name // 100 for name in batch}) == 1 for batch in epoch)  # a file after the other
    assert first != second
    assert names(take(PretrainingData(folder, batch_size=4, seed=1), 3)) == first[:3]
    assert names(take(PretrainingData(folder, batch_size=4, seed=2), 3)) != first[:3]


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_run_resumed_at_any_batch_equals_one_that_was_not(folder: Path, world_size: int) -> None:
    for rank in range(world_size):
        options = {"batch_size": 4, "seed": 3, "rank": rank, "world_size": world_size}
        whole = names(take(PretrainingData(folder, **options), 30))
        data = PretrainingData(folder, **options)
        positions = [data.position]
        for _ in zip(range(25), data, strict=False):
            positions.append(data.position)
        for done in (0, 1, 2, 5, 9, 14, 24):  # in a file, at its end, in another epoch
            position = json.loads(json.dumps(positions[done]))
            rest = PretrainingData(folder, **options, position=position)
            assert names(take(rest, 5)) == whole[done : done + 5], position


def test_ranks_stay_in_step_and_share_no_file(folder: Path) -> None:
    ranks = [PretrainingData(folder, batch_size=4, seed=5, rank=rank, world_size=2) for rank in range(2)]
    streams = [iter(data) for data in ranks]
    for _ in range(40):
        pair = [next(stream) for stream in streams]
        assert ranks[0].position == ranks[1].position
        files = [int(batch.input_ids[0, 1]) // 100 for batch in pair]
        assert files[0] != files[1]


def test_more_ranks_than_files_read_the_same_file_in_other_orders(folder: Path) -> None:
    batches = [take(PretrainingData(folder, batch_size=4, seed=5, rank=rank, world_size=6), 1)[0] for rank in (0, 5)]
    first, last = (batch.input_ids[:, 1] for batch in batches)
    assert first[0] // 100 == last[0] // 100
    assert first.tolist() != last.tolist()


def test_another_world_size_goes_on_near_where_the_run_was(folder: Path) -> None:
    position = {"epoch": 3, "round": 3, "batch": 2, "world_size": 1}
    data = PretrainingData(folder, batch_size=4, seed=1, world_size=2, position=position)
    assert data.position == {"epoch": 3, "round": 1, "batch": 0, "world_size": 2}
    position = {"epoch": 3, "round": 1, "batch": 2, "world_size": 2}
    data = PretrainingData(folder, batch_size=4, seed=1, world_size=1, position=position)
    assert data.position == {"epoch": 3, "round": 2, "batch": 0, "world_size": 1}


def test_only_files_of_the_training_part_are_read(folder: Path) -> None:
    assert [path.name for path in PretrainingData(folder, batch_size=4, seed=1).files] == [
        f"x_training_{number}.hdf5" for number in range(5)
    ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch_size": 9}, "x_training_4.hdf5 holds 8 instances, less than a batch of 9"),
        ({"max_seq_length": 16}, "holds sequences of 8 tokens, but --max_seq_length is 16"),
        ({"rank": 2, "world_size": 2}, "rank 2 is none of 2"),
        ({"position": {"epoch": 1}}, "is no position in the data"),
        ({"position": {"epoch": 1, "round": -1, "batch": 0, "world_size": 1}}, "is no position in the data"),
    ],
)
def test_what_does_not_fit_is_refused_at_once(folder: Path, options: dict[str, object], said: str) -> None:
    with pytest.raises(DataError, match=said):
        PretrainingData(folder, **{"batch_size": 4, "seed": 1, **options})  # type: ignore[arg-type]


def test_a_vocabulary_of_another_size_is_said_when_its_file_is_read(folder: Path) -> None:
    with pytest.raises(DataError, match="input_ids holds .* to .*, but it may hold 0 to 99 with this vocabulary"):
        take(PretrainingData(folder, batch_size=4, seed=1, vocab_size=100), 1)


def test_a_missing_folder_and_one_without_training_files_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere: no such folder"):
        PretrainingData(tmp_path / "nowhere", batch_size=4, seed=1)
    (tmp_path / "x_test_0.hdf5").write_bytes((folder / "x_test_0.hdf5").read_bytes())
    with pytest.raises(DataError, match="has no HDF5 file with training in its name"):
        PretrainingData(tmp_path, batch_size=4, seed=1)
    (tmp_path / "x_training_0.hdf5").write_bytes(b"torn")
    with pytest.raises(DataError, match="x_training_0.hdf5 is no HDF5 file, or is damaged"):
        PretrainingData(tmp_path, batch_size=4, seed=1)
