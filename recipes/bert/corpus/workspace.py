"""Where things lie, how a file is written whole or not at all, and how finished work is found again.

Folder and file names are those of NVIDIA's bertPrep.py (DeepLearningExamples, PyTorch/LanguageModeling/BERT/data), so
that data and scripts made for it fit.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

__all__ = ["DataError", "Done", "Job", "Settings", "Workspace", "digest", "read_json", "run", "written"]

_NO_SPACE = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT}


class DataError(ValueError):
    """The data, an option or the disk is at fault; the message is one line for the user."""


def read_json(path: Path, called: str = "") -> Any:
    """Return what a file of JSON holds.

    Args:
        path: the file.
        called: what an error calls it; by default its path.

    Raises:
        DataError: it cannot be read, or is no JSON.
    """
    try:
        text = path.read_text(encoding="utf-8")
        return json.loads(text)
    except OSError as error:
        raise DataError(f"{called or path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{called or path} is not UTF-8 text: byte {error.start} cannot be decoded") from None
    except ValueError as error:
        why = str(error) if text.strip() else "it is empty"
        raise DataError(f"{called or path} is no JSON: {why}; mend the file, or get it anew") from None


@dataclass(frozen=True)
class Settings:
    """What decides the content of HDF5 files, under bertPrep's names and defaults.

    Raises:
        DataError: a number is out of range.
    """

    max_seq_length: int = 512
    max_predictions_per_seq: int = 20
    masked_lm_prob: float = 0.15
    short_seq_prob: float = 0.1
    dupe_factor: int = 5
    do_lower_case: int = 1
    random_seed: int = 12345

    def __post_init__(self) -> None:
        for name, low, high in (
            ("max_seq_length", 5, 1 << 20),  # [CLS] a [SEP] b [SEP]
            ("max_predictions_per_seq", 1, self.max_seq_length - 3),
            ("masked_lm_prob", 0, 1),
            ("short_seq_prob", 0, 1),
            ("dupe_factor", 1, 1 << 20),
            ("random_seed", 0, (1 << 64) - 1),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise DataError(f"--{name} {value} is not between {low} and {high}")

    @property
    def lower(self) -> bool:
        """Any number above 0 means uncased."""
        return self.do_lower_case > 0


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


def digest(*parts: bytes | str | int | float) -> str:
    """Name content by a hash; parts keep their borders."""
    h = hashlib.blake2b(digest_size=16)
    for part in parts:
        raw = part if isinstance(part, bytes) else str(part).encode()
        h.update(len(raw).to_bytes(8, "little"))
        h.update(raw)
    return h.hexdigest()


@contextlib.contextmanager
def written(path: Path) -> Iterator[IO[bytes]]:
    """Open a file to write that appears under its name when it is complete, or never.

    Raises:
        DataError: the disk is full, or the folder cannot be written.
    """
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        _drop(part)
        if error.errno in _NO_SPACE:
            raise DataError(
                f"no space left to write {path} ({error.strerror}); what is finished stays: "
                "make room and give the same command again"
            ) from None
        raise DataError(f"{path} cannot be written: {error.strerror or error}") from None
    except BaseException:
        _drop(part)
        raise


def _drop(part: Path) -> None:
    with contextlib.suppress(OSError):
        part.unlink()


@dataclass(frozen=True)
class Job:
    """One file to be made.

    Args:
        output: the file.
        key: digest of all that its content depends on; a file made under the same key is not made again.
        arguments: what `work` gets after `output`.
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

    Raises:
        DataError: what `work` or `jobs` raised; or a process died.
    """
    found = _remembered(ledger)
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
                row = found.get(_name(job, ledger))
                if row and row["key"] == job.key and _size(job.output) == row["bytes"]:
                    yield Done(job, row["figures"], kept=True)
                elif n_processes == 1:
                    yield finish(job, work(job.output, *job.arguments))
                else:
                    if pool is None:
                        context = multiprocessing.get_context("spawn")
                        pool = ProcessPoolExecutor(n_processes, context, _ignore_interrupts)
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


def _ignore_interrupts() -> None:
    # Ctrl-C reaches the whole group; the parent decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextlib.contextmanager
def _appending(ledger: Path) -> Iterator[Callable[[dict[str, Any]], None]]:
    """What appends a row; unbuffered, so that a full disk is met here and not when the file is closed."""
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


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else -1


def _remembered(ledger: Path) -> dict[str, dict[str, Any]]:
    """Rows by output; a line torn by a kill or a full disk is as good as none."""
    rows: dict[str, dict[str, Any]] = {}
    if ledger.is_file():
        for line in ledger.read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError):
                row = json.loads(line)
                rows[row["output"]] = {"key": row["key"], "bytes": row["bytes"], "figures": dict(row["figures"])}
    return rows
