"""HDF5 files of training instances: written whole, read with every doubt checked, printed as text.

A file holds the fields of `Instances` as gzip-compressed datasets, with upstream's names and dtypes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import h5py
import numpy as np
from harness.fetch import Tick
from harness.files import DataError, digest, reading, written
from harness.jobs import Job, run, totals
from harness.wordpiece import Vocabulary, read_vocabulary

from corpus.instances import Instances, make_instances, read_documents
from corpus.workspace import Settings

DATASETS = {
    "input_ids": ("i4", 2), "input_mask": ("i1", 2), "segment_ids": ("i1", 2), "masked_lm_positions": ("i4", 2),
    "masked_lm_ids": ("i4", 2), "next_sentence_labels": ("i1", 1),
}  # fmt: skip
"""Name: dtype, number of dimensions."""

_ALGORITHM = "instances 1"
_ROWS = 1024  # in a chunk: what a reader unpacks to see one instance
_GZIP = 1
_MOST_PACKED = 1100  # deflate makes no more than 1,032 bytes of one
_UNKNOWN = 0.1  # more words than that out of the vocabulary, and it is the wrong one


def write(path: Path, instances: Instances) -> None:
    """Write instances; equal ones make files equal to the byte."""
    # Made in memory and then written: HDF5 does not survive a disk that fills up under it.
    with h5py.File("memory", "w", driver="core", backing_store=False) as file:
        for name, (dtype, _) in DATASETS.items():
            values = getattr(instances, name)
            file.create_dataset(
                name, data=values, dtype=dtype, chunks=(min(len(values), _ROWS), *values.shape[1:]),
                compression="gzip", compression_opts=_GZIP, shuffle=dtype == "i4",
            )  # fmt: skip
        file.flush()
        image = file.id.get_file_image()
    with written(path) as out:
        out.write(image)


def read(path: Path, vocab_size: int | None = None, rows: slice = slice(None)) -> Instances:
    """Read a file, or some of its rows; words beyond `vocab_size` are refused."""
    with _opened(path) as file:
        instances = Instances(**{name: file[name][rows] for name in DATASETS})
    words, length = ("input_ids", "masked_lm_ids"), instances.input_ids.shape[1]
    tops = dict.fromkeys(DATASETS, 2) | dict.fromkeys(words, vocab_size) | {"masked_lm_positions": length}
    for name, top in tops.items():
        values = getattr(instances, name)
        if values.size and (values.min() < 0 or (top is not None and values.max() >= top)):
            limit = f"0 to {top - 1:,}" if top is not None else "0 on"
            raise DataError(
                f"{path}: {name} holds {values.min():,} to {values.max():,}, but it may hold {limit}"
                + (" with this vocabulary" if name in words else "")
            )
    return instances


def shape(path: Path) -> tuple[int, int]:
    """Return how many instances a file holds, and L, from its header alone."""
    with _opened(path) as file:
        count, length = file["input_ids"].shape
    return count, length


@contextmanager
def _opened(path: Path) -> Iterator[h5py.File]:
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    try:
        with h5py.File(path, "r") as file:
            if wrong := _wrong(file):
                raise DataError(f"{path}{wrong}")
            yield file
    except (OSError, RuntimeError, KeyError) as error:
        raise DataError(f"{path} is no HDF5 file, or is damaged ({error}): make it again, or fetch it again") from None


def _wrong(file: h5py.File) -> str:
    """What is wrong with the headers of a file, to be said after its path; nothing where all are right."""
    if missing := [name for name in DATASETS if not isinstance(file.get(name), h5py.Dataset)]:
        return f" has no dataset {', '.join(missing)}; it is not of create_hdf5_files"
    for name, (dtype, dimensions) in DATASETS.items():
        if file[name].dtype != np.dtype(dtype) or file[name].ndim != dimensions:
            actual = f"{file[name].dtype} {list(file[name].shape)}"
            return f": {name} is {actual}, not {np.dtype(dtype)} of {dimensions} dimensions"
        # A header of a few bytes must not make a reader ask for all memory.
        if file[name].nbytes > _MOST_PACKED * (file[name].id.get_storage_size() + 1024):
            return f": {name} claims {file[name].nbytes:,} bytes that are not in the file"
    shapes = {name: file[name].shape for name in DATASETS}
    if len({shape[0] for shape in shapes.values()}) != 1:
        return f": its datasets have different numbers of rows: {shapes}"
    if len({shapes[name][1] for name in ("input_ids", "input_mask", "segment_ids")}) != 1:
        return f": its datasets have different lengths of sequence: {shapes}"
    if shapes["masked_lm_positions"] != shapes["masked_lm_ids"]:
        return f": masked_lm_positions and masked_lm_ids differ in shape: {shapes}"
    return "" if shapes["input_ids"][0] else " holds no instance"


# One a process, so that its table serves all shards.
_vocabulary = cache(read_vocabulary)


def create(
    shards: Sequence[Path], folder: Path, vocab_file: Path, settings: Settings, n_processes: int,
    tick: Tick = lambda said: None,
) -> Counter[str]:  # fmt: skip
    """Make {shard}.hdf5 for each {shard}.txt; those already there from the same text and settings are kept.

    Returns sums over the files: instances, tokens (before the repetitions), files, kept files.
    """
    _vocabulary(vocab_file, settings.lower)  # says what is wrong with it once, not from every process
    empty = [path for path in shards if path.is_file() and not path.stat().st_size]
    for what, wrong in (("missing", [path for path in shards if not path.is_file()]), ("empty", empty)):
        if wrong:
            more = f" and {len(wrong) - 1} more of {len(shards)}" if len(wrong) > 1 else ""
            raise DataError(
                f"shard {wrong[0]}{more} {'is' if len(wrong) == 1 else 'are'} {what}: give --action sharding "
                "again with the same --n_training_shards, --n_test_shards and --fraction_test_set"
            )
    words = digest(vocab_file.read_bytes())

    def jobs() -> Iterator[Job]:
        for path in shards:
            key = digest(_ALGORITHM, repr(settings), words, path.name, path.read_bytes())
            yield Job(folder / f"{path.stem}.hdf5", key, (path, vocab_file, settings))

    work = run(jobs(), create_shard, folder / "finished.jsonl", n_processes)
    return totals(work, lambda sums: tick(f"{sums['files']} of {len(shards)} files"))


def create_shard(output: Path, shard: Path, vocab_file: Path, settings: Settings) -> dict[str, int]:
    """Make one file; the random numbers are its own by its name, so it does not matter which process makes it."""
    vocabulary = _vocabulary(vocab_file, settings.lower)
    with reading(shard), shard.open(encoding="utf-8", newline="\n") as lines:
        documents = read_documents(iter(lines), vocabulary)
    if not len(documents):
        raise DataError(f"{shard} holds no sentence: give --action sharding again, with fewer shards if it repeats")
    unknown = float((documents.tokens == vocabulary.unk).mean())
    if unknown > _UNKNOWN:
        raise DataError(
            f"{unknown:.0%} of the tokens of {shard} are not in {vocab_file}: it is not the vocabulary of this language"
        )
    split, _, index = shard.stem.rpartition("_")
    stream = (settings.random_seed, split.endswith("_test"), int(index) if index.isdigit() else 0)
    instances = make_instances(documents, vocabulary, settings, stream)
    write(output, instances)
    return {"instances": len(instances.input_ids), "tokens": len(documents.tokens)}


def show(path: Path, index: int, vocabulary: Vocabulary) -> str:
    """Say an instance as text: both segments, masked words in brackets as they stand ← as they were."""
    (count, total), words = shape(path), vocabulary.words
    if not -count <= index < count:
        raise DataError(f"{path} has {count:,} instances, 0 to {count - 1:,}: there is no {index}")
    index %= count
    instance = read(path, len(vocabulary), slice(index, index + 1))
    length, said = int(instance.input_mask[0].sum()), (list[str](), list[str]())
    was = {int(p): int(w) for p, w in zip(instance.masked_lm_positions[0], instance.masked_lm_ids[0], strict=True) if p}
    for position, number in enumerate(instance.input_ids[0, :length].tolist()):
        word, side = words[number], said[instance.segment_ids[0, position]]
        if position in was:
            word = f"[{word.strip('[]')} ← {words[was[position]]}]" if number != was[position] else f"[= {word}]"
        elif word.startswith("##") and side and not side[-1].endswith("]"):
            word = side.pop() + word[2:]
        side.append(word)
    follows = "B is from elsewhere" if instance.next_sentence_labels[0] else "B follows A"
    return (
        f"{path.name}, instance {index} of {count:,}: {length} tokens of {total}, {len(was)} predicted, {follows}\n"
        + "\n".join(f"{name}: {' '.join(text)}" for name, text in zip("AB", said, strict=True))
    )
