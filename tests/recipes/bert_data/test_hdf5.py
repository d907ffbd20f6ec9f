"""The files: what is in them, what a damaged one says, what an instance says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from corpus.hdf5 import DATASETS, create, create_shard, read, show, write
from corpus.instances import Instances
from corpus.workspace import Settings
from harness.files import DataError
from harness.wordpiece import Vocabulary, read_vocabulary

SETTINGS = Settings(64, 9, dupe_factor=1)
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "##s", "dog", "."]


def small() -> Instances:
    """[CLS] the cat##s [SEP] the dog . [SEP], cat masked, the second `the` kept, dog replaced by sat."""
    return Instances(
        input_ids=np.array([[2, 5, 4, 8, 3, 5, 7, 10, 3, 0]], np.int32),
        input_mask=np.array([[1] * 9 + [0]], np.int8),
        segment_ids=np.array([[0] * 5 + [1] * 4 + [0]], np.int8),
        masked_lm_positions=np.array([[2, 5, 6, 0]], np.int32),
        masked_lm_ids=np.array([[6, 5, 9, 0]], np.int32),
        next_sentence_labels=np.array([1], np.int8),
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write(tmp_path / "x_training_0.hdf5", small())
    return tmp_path / "x_training_0.hdf5"


def test_a_file_holds_upstreams_datasets_and_dtypes(file: Path) -> None:
    with h5py.File(file, "r") as opened:
        assert {name: (data.dtype.str, data.shape, data.compression) for name, data in opened.items()} == {
            "input_ids": ("<i4", (1, 10), "gzip"),
            "input_mask": ("|i1", (1, 10), "gzip"),
            "segment_ids": ("|i1", (1, 10), "gzip"),
            "masked_lm_positions": ("<i4", (1, 4), "gzip"),
            "masked_lm_ids": ("<i4", (1, 4), "gzip"),
            "next_sentence_labels": ("|i1", (1,), "gzip"),
        }
    instances = read(file, vocab_size=len(WORDS))
    assert all(np.array_equal(getattr(instances, name), getattr(small(), name)) for name in DATASETS)


def test_an_instance_reads_as_text(file: Path) -> None:
    assert show(file, 0, Vocabulary(WORDS, lower=True)) == (
        "x_training_0.hdf5, instance 0 of 1: 9 tokens of 10, 3 predicted, B is from elsewhere\n"
        "A: [CLS] the [MASK ← cat] ##s [SEP]\n"
        "B: [= the] [sat ← dog] . [SEP]"
    )
    assert show(file, -1, Vocabulary(WORDS, lower=True)).startswith("x_training_0.hdf5, instance 0 of 1")
    with pytest.raises(DataError, match="has 1 instances, 0 to 0: there is no 1"):
        show(file, 1, Vocabulary(WORDS, lower=True))


def changed(name: str, change: Callable[[np.ndarray], object], dtype: str | None = None) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        with h5py.File(path, "r+") as opened:
            values = np.asarray(change(opened[name][:]))
            del opened[name]
            opened.create_dataset(name, data=values, dtype=dtype or values.dtype)

    return apply


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flipped(path: Path) -> None:
    """One byte in the middle of the packed numbers."""
    with h5py.File(path, "r") as opened:
        at = opened["input_ids"].id.get_chunk_info(0)
    raw = bytearray(path.read_bytes())
    raw[at.byte_offset + at.size // 2] ^= 0xFF
    path.write_bytes(raw)


def huge(path: Path) -> None:
    with h5py.File(path, "r+") as opened:
        for name, (dtype, dimensions) in DATASETS.items():
            del opened[name]
            opened.create_dataset(
                name, (1 << 40, 4)[:dimensions], dtype, chunks=(1 << 20, 4)[:dimensions], compression="gzip"
            )


def without(path: Path) -> None:
    with h5py.File(path, "r+") as opened:
        del opened["segment_ids"]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (cut, "is no HDF5 file, or is damaged"),
        (flipped, "is no HDF5 file, or is damaged"),
        (lambda path: path.write_bytes(b""), "is no HDF5 file, or is damaged"),
        (Path.unlink, "no such file"),
        (without, "has no dataset segment_ids"),
        (huge, "claims .* bytes that are not in the file"),
        (changed("input_ids", lambda x: x, "i8"), "input_ids is int64"),
        (changed("input_ids", lambda x: x[0]), r"input_ids is int32 \[10\], not int32 of 2 dimensions"),
        (changed("input_mask", lambda x: x[:0]), "different numbers of rows"),
        (changed("segment_ids", lambda x: x[:, 1:]), "different lengths of sequence"),
        (changed("masked_lm_ids", lambda x: x[:, 1:]), "masked_lm_positions and masked_lm_ids differ in shape"),
        (changed("input_ids", lambda x: x + 4), "input_ids holds 4 to 14, but it may hold 0 to 10 with"),
        (changed("masked_lm_positions", lambda x: x + 5), "masked_lm_positions holds 5 to 11, but it may hold 0 to 9"),
        (changed("next_sentence_labels", lambda x: -x), "next_sentence_labels holds -1 to -1"),
    ],
)  # fmt: skip
def test_a_damaged_file_is_refused_in_one_line(file: Path, damage: Callable[[Path], None], said: str) -> None:
    damage(file)
    with pytest.raises(DataError, match=said) as caught:
        read(file, vocab_size=len(WORDS))
    assert "\n" not in str(caught.value)
    assert file.name in str(caught.value)


def test_a_file_without_instances_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.hdf5", "w") as opened:
        for name, (dtype, dimensions) in DATASETS.items():
            opened.create_dataset(name, (0, 4)[:dimensions], dtype)
    with pytest.raises(DataError, match="holds no instance"):
        read(tmp_path / "x.hdf5")


def test_files_are_equal_to_the_byte_and_kept(tmp_path: Path, shards: Path, vocab_file: Path) -> None:
    paths = sorted(shards.glob("*.txt"))
    sums = create(paths, tmp_path / "a", vocab_file, SETTINGS, 1)
    assert (sums["files"], sums["kept"]) == (4, 0)
    create(list(reversed(paths)), tmp_path / "b", vocab_file, SETTINGS, 1)  # in another order
    files = sorted((tmp_path / "a").glob("*.hdf5"))
    assert [path.name for path in files] == [f"{path.stem}.hdf5" for path in paths]
    assert [path.read_bytes() for path in files] == [(tmp_path / "b" / path.name).read_bytes() for path in files]
    files[0].unlink()
    files[1].write_bytes(b"torn")
    again = create(paths, tmp_path / "a", vocab_file, SETTINGS, 1)
    assert again == {**sums, "kept": 2}
    assert files[1].read_bytes() == (tmp_path / "b" / files[1].name).read_bytes()
    assert sum(len(read(path).input_ids) for path in files) == sums["instances"]
    assert create(paths, tmp_path / "a", vocab_file, Settings(64, 9, dupe_factor=1, random_seed=1), 1)["kept"] == 0


def test_unusable_shards_are_named(tmp_path: Path, vocab_file: Path) -> None:
    good, empty, blank, foreign = (tmp_path / f"x_training_{i}.txt" for i in range(4))
    good.write_text("a b.\nc d.\n\n")
    empty.touch()
    blank.write_text("\n \n")
    foreign.write_text("漢字かな交じり文。" * 20 + "\n")
    absent = tmp_path / "x_test_0.txt"
    with pytest.raises(DataError, match=r"shard .*x_test_0.txt is missing: give --action sharding again"):
        create([good, absent], tmp_path, vocab_file, SETTINGS, 1)
    with pytest.raises(DataError, match=r"shard .*x_training_1.txt is empty"):
        create([good, empty], tmp_path, vocab_file, SETTINGS, 1)
    with pytest.raises(DataError, match=r"x_training_2.txt holds no sentence"):
        create([good, blank], tmp_path, vocab_file, SETTINGS, 1)
    assert read(tmp_path / "x_training_0.hdf5").input_ids.shape[1] == 64  # what was finished before
    with pytest.raises(DataError, match=r"of the tokens of .*x_training_3.txt are not in .*vocab.txt"):
        create_shard(tmp_path / "x.hdf5", foreign, vocab_file, SETTINGS)


def test_the_vocabulary_is_checked_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="--vocab_file .*nowhere cannot be read"):
        create([tmp_path / "absent.txt"], tmp_path, tmp_path / "nowhere", SETTINGS, 1)


def test_the_recipes_vocabulary_reader_gives_the_numbers_of_the_lines(vocab_file: Path) -> None:
    lines = vocab_file.read_text(encoding="utf-8").split("\n")[:-1]
    assert read_vocabulary(vocab_file, lower=True).words == lines
