"""One article a line to shards: one sentence a line, an empty line after each article, shards of nearly equal length.

Sentences are Punkt's with its English parameters, which is what `nltk.sent_tokenize` runs; the package `punkt` carries
the parameters, so nothing is fetched. They are written once, to `segmented/{dataset}/`, for any number of shards.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from harness.fetch import Tick
from harness.files import DataError, digest, written
from harness.jobs import Job, run, totals

PIECE = 4 << 20  # bytes of text
_METHOD = "punkt english 1"


@dataclass(frozen=True, slots=True)
class Article:
    """Where an article's sentences lie: piece, first byte, bytes; and how many sentences."""

    part: int
    start: int
    size: int
    sentences: int


@dataclass(frozen=True)
class Shard:
    """The articles of one shard, in the order of the text, and how many sentences they have."""

    name: str
    articles: tuple[int, ...]
    sentences: int


def segment(
    inputs: Sequence[Path], folder: Path, n_processes: int, tick: Tick = lambda said: None
) -> tuple[list[Path], list[Article]]:
    """Split the articles of the inputs, one a line, into sentences; pieces already there from the same text are kept.

    Returns the pieces, and every article in the order of the inputs.
    """
    parts: list[Path] = []

    def jobs() -> Iterator[Job]:
        for path in inputs:
            for start, block in _blocks(path):
                parts.append(folder / f"part_{len(parts):05d}.txt")
                yield Job(parts[-1], digest(_METHOD, block), (path, start, len(block)))

    work = run(jobs(), _segment_piece, folder / "finished.jsonl", n_processes)
    totals(work, lambda sums: tick(f"{sums['articles']:,} articles in sentences"))
    for stale in set(folder.glob("part_*.txt")) - set(parts):
        stale.unlink()
    articles = [article for index, part in enumerate(parts) for article in _articles(part, index)]
    if not articles:
        raise DataError(f"no article in {', '.join(map(str, inputs))}: run --action text_formatting first")
    return parts, articles


def _blocks(path: Path) -> Iterator[tuple[int, bytes]]:
    """Pieces of whole lines, each with the byte it starts at."""
    try:
        with path.open("rb") as file:
            start = 0
            while block := file.read(PIECE):
                block += file.readline()
                yield start, block
                start += len(block)
    except OSError as error:
        raise DataError(
            f"{path} cannot be read ({error.strerror}); --action text_formatting makes it, "
            "or name files with an article a line by --input_files"
        ) from None


@cache
def _punkt() -> Any:
    import punkt

    return punkt.PunktSentenceTokenizer(punkt.load_model("english"))


def sentences(article: str) -> list[str]:
    """Split one article; what is between two sentences is white space, and gone."""
    return [tidy for sentence in _punkt().tokenize(article) if (tidy := " ".join(sentence.split()))]


def _read_part(path: Path, start: int, size: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        return file.read(size)


def _segment_piece(output: Path, path: Path, start: int, size: int) -> dict[str, int]:
    count = 0
    try:
        text = _read_part(path, start, size).decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text: byte {start + error.start} cannot be decoded") from None
    with written(output) as out:
        for line in text.split("\n"):
            if lines := sentences(line):
                out.write("\n".join(lines).encode() + b"\n\n")
                count += 1
    return {"articles": count}


def _articles(part: Path, index: int) -> Iterator[Article]:
    start = size = count = 0
    with part.open("rb") as file:
        for line in file:
            size += len(line)
            if line == b"\n":
                yield Article(index, start, size, count)
                start, size, count = start + size, 0, 0
            else:
                count += 1


def shard_names(dataset: str, n_training: int, n_test: int) -> list[str]:
    """Upstream's names without their ending: wikicorpus_en_training_0 … wikicorpus_en_test_0 …."""
    return [f"{dataset}_training_{i}" for i in range(n_training)] + [f"{dataset}_test_{i}" for i in range(n_test)]


def distribute(
    articles: Sequence[Article], dataset: str, n_training: int, n_test: int, fraction_test_set: float
) -> list[Shard]:
    """Deal articles out, each to one shard, so that shards of a kind get nearly the same number of sentences.

    The longest article goes first, each to the shard that has least of what it should get. Measured as a share, so
    that test shards, which should get less, fill up beside the training shards and get short and long articles alike.
    """
    if n_training < 1 or n_test < 1 or not 0 < fraction_test_set < 1:
        raise DataError(
            f"--n_training_shards {n_training} and --n_test_shards {n_test} must be at least 1, "
            f"--fraction_test_set {fraction_test_set} between 0 and 1"
        )
    if len(articles) < n_training + n_test:
        raise DataError(
            f"{len(articles):,} articles cannot fill {n_training} training and {n_test} test shards, one article each "
            "at the least: ask for fewer by --n_training_shards and --n_test_shards"
        )
    total = sum(article.sentences for article in articles)
    wanted = [total * (1 - fraction_test_set) / n_training] * n_training + [total * fraction_test_set / n_test] * n_test
    members, held = [array("q") for _ in wanted], [0] * len(wanted)
    fill = [(0.0, index) for index in range(len(wanted))]  # a heap as it stands
    for number in sorted(range(len(articles)), key=lambda n: -articles[n].sentences):
        _, index = fill[0]
        members[index].append(number)
        held[index] += articles[number].sentences
        heapq.heapreplace(fill, (held[index] / wanted[index], index))
    names = shard_names(dataset, n_training, n_test)
    return [Shard(name, tuple(sorted(own)), count) for name, own, count in zip(names, members, held, strict=True)]


def write_shards(
    shards: Sequence[Shard], articles: Sequence[Article], parts: Sequence[Path], folder: Path, n_processes: int,
    tick: Tick = lambda said: None,
) -> int:  # fmt: skip
    """Write {shard}.txt for each shard; return how many were there already with the same articles."""
    texts = [digest(part.read_bytes()) for part in parts]

    def jobs() -> Iterator[Job]:
        for shard in shards:
            of_shard = [articles[number] for number in shard.articles]
            key = digest(*(value for a in of_shard for value in (texts[a.part], a.start, a.size)))
            pieces = [(parts[a.part], a.start, a.size) for a in of_shard]
            yield Job(folder / f"{shard.name}.txt", key, (pieces,))

    work = run(jobs(), _write_shard, folder / "finished.jsonl", n_processes)
    return totals(work, lambda sums: tick(f"{sums['files']} of {len(shards)} shards"))["kept"]


def _write_shard(output: Path, pieces: list[tuple[Path, int, int]]) -> dict[str, int]:
    with written(output) as out:
        for piece in pieces:
            out.write(_read_part(*piece))
    return {"articles": len(pieces)}
