"""Files that jobs make, several at a time; finished ones are found again, whatever stopped the rest."""

from __future__ import annotations

import contextlib
import errno
import json
import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.files import DataError


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
    running: dict[Future[dict[str, int]], Job] = {}

    def collect(limit: int) -> Iterator[Done]:
        """Wait until fewer than `limit` jobs run."""
        while len(running) >= limit:
            ended = wait(running, return_when=FIRST_COMPLETED).done
            # Remembered before they are forgotten: an interrupt in between writes a row twice, which does no harm.
            done = [finished.add(running[future], future.result()) for future in ended if future.exception() is None]
            for future in ended:
                del running[future]
            yield from done
            for future in ended:
                future.result()  # raises what one of them raised

    with contextlib.ExitStack() as stack:
        finished = _Ledger(ledger, stack)
        pool: ProcessPoolExecutor | None = None
        try:
            for job in jobs:
                if (before := finished.find(job)) is not None:
                    yield before
                elif n_processes == 1:
                    yield finished.add(job, work(job.output, *job.arguments))
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
            for future in running:
                future.cancel()
            for future in wait(running).done:
                if not future.cancelled() and future.exception() is None:
                    finished.add(running[future], future.result())
            raise


def totals(jobs: Iterable[Done], tick: Callable[[Counter[str]], None]) -> Counter[str]:
    """Add up the figures of jobs, and how many `files` they are and how many were `kept`; tell `tick` after each."""
    sums = Counter({"files": 0, "kept": 0})
    for done in jobs:
        sums.update({"files": 1, "kept": done.kept, **done.figures})
        tick(sums)
    return sums


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Hold Ctrl-C back while a process may be started, which inherits that until it can ignore Ctrl-C itself."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Ledger:
    """Remembers finished jobs; a line torn by a kill or a full disk is as good as none."""

    def __init__(self, path: Path, stack: contextlib.ExitStack) -> None:
        self._path, self._rows = path, {}
        if path.is_fifo():
            raise DataError(f"{path} is no regular file")  # to open it would wait for a reader
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else ():
            with contextlib.suppress(ValueError, KeyError, TypeError):
                row = json.loads(line)
                self._rows[row["output"]] = (row["key"], row["bytes"], dict(row["figures"]))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Unbuffered, so that a full disk is met here and not when the file is closed.
            self._file = stack.enter_context(path.open("ab", buffering=0))
        except OSError as error:
            raise DataError(f"{path} cannot be written: {error.strerror}") from None
        if self._file.tell() and not path.read_bytes().endswith(b"\n"):
            self._append(b"")  # ends a torn line

    def find(self, job: Job) -> Done | None:
        """Return the job as finished, if its file is there and of the same key."""
        key, size, figures = self._rows.get(self._name(job), ("", -1, {}))
        same = key == job.key and job.output.is_file() and job.output.stat().st_size == size
        return Done(job, figures, kept=True) if same else None

    def add(self, job: Job, figures: dict[str, int]) -> Done:
        """Remember a job that has just ended."""
        row = {"output": self._name(job), "key": job.key, "bytes": job.output.stat().st_size, "figures": figures}
        self._append(json.dumps(row).encode())
        return Done(job, figures, kept=False)

    def _name(self, job: Job) -> str:
        return job.output.relative_to(self._path.parent).as_posix()

    def _append(self, line: bytes) -> None:
        try:
            if self._file.write(line + b"\n") <= len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise DataError(
                f"{self._path} cannot be written: {error.strerror}; what is finished stays: give the same command again"
            ) from None
