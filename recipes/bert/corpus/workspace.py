"""Where things lie, how the work is shared out to processes, and how finished work is found again.

Folder and file names are those of NVIDIA's bertPrep.py (DeepLearningExamples, PyTorch/LanguageModeling/BERT/data), so
that data and scripts made for it fit.
"""

from __future__ import annotations

import contextlib
import errno
import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO, Annotated, Any

from harness.files import DataError
from harness.options import flag, within


@dataclass(frozen=True)
class Settings:
    """What decides the content of HDF5 files, under bertPrep's names and defaults."""

    max_seq_length: Annotated[int, flag()] = 512
    max_predictions_per_seq: Annotated[int, flag()] = 20
    masked_lm_prob: Annotated[float, flag("Share of the tokens to predict.")] = 0.15
    short_seq_prob: Annotated[float, flag("Share of the documents cut shorter than they need be.")] = 0.1
    dupe_factor: Annotated[int, flag("Times the text is used, masked otherwise.")] = 5
    do_lower_case: Annotated[int, flag("0: cased; more: uncased.")] = 1
    random_seed: Annotated[int, flag()] = 12345

    def __post_init__(self) -> None:
        within(
            self,
            ("max_seq_length", 5, 1 << 20),  # [CLS] a [SEP] b [SEP]
            ("max_predictions_per_seq", 1, self.max_seq_length - 3), ("masked_lm_prob", 0, 1),
            ("short_seq_prob", 0, 1), ("dupe_factor", 1, 1 << 20), ("random_seed", 0, (1 << 64) - 1),
        )  # fmt: skip

    @property
    def lower(self) -> bool:
        """Any number above 0 means uncased."""
        return self.do_lower_case > 0

    @classmethod
    def of(cls, flags: Settings) -> Settings:
        """Return the settings among a script's flags."""
        return cls(**{field.name: getattr(flags, field.name) for field in fields(cls)})


@dataclass(frozen=True)
class Workspace:
    """The folders under BERT_PREP_WORKING_DIR."""

    root: Path

    @property
    def download(self) -> Path:
        return self.root / "download"

    @property
    def extracted(self) -> Path:
        return self.root / "extracted"

    @property
    def segmented(self) -> Path:
        """Sentences, one a line, before they are dealt out to shards; upstream keeps these in memory."""
        return self.root / "segmented"

    def vocabulary(self, lower: bool) -> Path:
        """The vocab.txt that google_pretrained_weights brings."""
        case = "uncased" if lower else "cased"
        path = self.download / "google_pretrained_weights" / f"{case}_L-24_H-1024_A-16" / "vocab.txt"
        if not path.is_file():
            raise DataError(
                f"no vocabulary: name one by --vocab_file, or --action download --dataset google_pretrained_weights "
                f"brings {path}"
            )
        return path

    def formatted(self, dataset: str) -> Path:
        unit = "book" if dataset == "bookscorpus" else "article"
        return self.root / "formatted_one_article_per_line" / f"{dataset}_one_{unit}_per_line.txt"

    def sharded(self, dataset: str, n_training: int, n_test: int, fraction: float) -> Path:
        name = f"sharded_training_shards_{n_training}_test_shards_{n_test}_fraction_{fraction}"
        return self.root / name / dataset

    def hdf5(self, dataset: str, s: Settings) -> Path:
        name = (
            f"hdf5_lower_case_{s.do_lower_case}_seq_len_{s.max_seq_length}_max_pred_{s.max_predictions_per_seq}"
            f"_masked_lm_prob_{s.masked_lm_prob}_random_seed_{s.random_seed}_dupe_factor_{s.dupe_factor}"
        )
        return self.root / name / dataset


@dataclass(frozen=True)
class Job:
    """A file to be made by `work(output, *arguments)`, unless there is one of the same key.

    The key is a digest of all that the content depends on.
    """

    output: Path
    key: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Done:
    """A finished job: what `work` returned, and whether it was found finished."""

    job: Job
    figures: dict[str, int]
    kept: bool


def run(jobs: Iterable[Job], work: Callable[..., dict[str, int]], ledger: Path, n_processes: int = 1) -> Iterator[Done]:
    """Do the jobs that are not done, several at a time, and yield each when it is finished.

    `ledger` is a file of JSON lines that remembers finished jobs. When one fails, or `jobs` itself does, those in
    progress are finished and remembered first. What is written never depends on `n_processes`; in which order jobs are
    yielded may.
    """
    rows = _remembered(ledger)
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(_appending(ledger))
        pool: ProcessPoolExecutor | None = None
        running: dict[Future[dict[str, int]], Job] = {}

        def finish(job: Job, figures: dict[str, int]) -> Done:
            row = {"output": _name(job, ledger), "key": job.key, "bytes": job.output.stat().st_size, "figures": figures}
            log(row)
            return Done(job, figures, kept=False)

        def collect(limit: int) -> Iterator[Done]:
            """Wait until fewer than `limit` jobs run."""
            while len(running) >= max(limit, 1):
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                failed: BaseException | None = None
                for future in done:
                    job = running.pop(future)
                    if (error := future.exception()) is None:
                        yield finish(job, future.result())
                    else:
                        failed = failed or error
                if failed:
                    raise failed

        def drain() -> None:
            """After a failure: let what runs end, and remember it."""
            for future in running:
                future.cancel()
            wait(running)
            for future, job in running.items():
                if not future.cancelled() and future.exception() is None:
                    finish(job, future.result())

        try:
            for job in jobs:
                row = rows.get(_name(job, ledger))
                if row and row["key"] == job.key and job.output.is_file() and job.output.stat().st_size == row["bytes"]:
                    yield Done(job, row["figures"], kept=True)
                elif n_processes == 1:
                    yield finish(job, work(job.output, *job.arguments))
                else:
                    if pool is None:
                        context = multiprocessing.get_context("spawn")
                        pool = ProcessPoolExecutor(  # Ctrl-C reaches the whole group; the parent decides.
                            n_processes, context, signal.signal, (signal.SIGINT, signal.SIG_IGN)
                        )
                        stack.callback(pool.shutdown, cancel_futures=True)
                    yield from collect(2 * n_processes)
                    with _interrupts_held():
                        running[pool.submit(work, job.output, *job.arguments)] = job
            yield from collect(1)
        except BrokenProcessPool:
            raise DataError(
                "a worker process was killed, perhaps for lack of memory; what is finished stays: "
                "give the same command again, with fewer --n_processes if it repeats"
            ) from None
        except BaseException:
            drain()
            raise


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Hold Ctrl-C back while a process may be started, which inherits that until it can ignore Ctrl-C itself."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _appending(ledger: Path) -> Iterator[Callable[[dict[str, Any]], None]]:
    """What appends a row; unbuffered, so that a full disk is met here and not when the file is closed."""
    if ledger.is_fifo():
        raise DataError(f"{ledger} is no regular file")  # to open it would wait for a reader
    try:
        ledger.parent.mkdir(parents=True, exist_ok=True)
        file = ledger.open("ab", buffering=0)
    except OSError as error:
        raise DataError(f"{ledger} cannot be written: {error.strerror}") from None
    with file:
        if file.tell() and not ledger.read_bytes().endswith(b"\n"):
            _append(ledger, file, b"")  # ends a torn line
        yield lambda row: _append(ledger, file, json.dumps(row).encode())


def _append(ledger: Path, file: IO[bytes], line: bytes) -> None:
    try:
        if file.write(line + b"\n") <= len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
        raise DataError(
            f"{ledger} cannot be written: {error.strerror}; what is finished stays: give the same command again"
        ) from None


def _name(job: Job, ledger: Path) -> str:
    return job.output.relative_to(ledger.parent).as_posix()


def _remembered(ledger: Path) -> dict[str, dict[str, Any]]:
    """Rows by output; a line torn by a kill or a full disk is as good as none."""
    rows: dict[str, dict[str, Any]] = {}
    if ledger.is_file():
        for line in ledger.read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError):
                row = json.loads(line)
                rows[row["output"]] = {"key": row["key"], "bytes": row["bytes"], "figures": dict(row["figures"])}
    return rows
