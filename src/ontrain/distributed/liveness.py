"""Who of the processes is still there: each writes a growing number to a shared store, and reads the others'."""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from ontrain.errors import ProcessError

__all__ = ["Liveness", "named"]

_PERIOD = 0.5
_MISSED = 5
"""Beats that a process may miss once something went wrong. As long as nothing does, nobody is suspected."""
_GRACE = 10.0
"""Seconds in which the others must meet the failure, too, before they are said to be elsewhere."""


class Liveness:
    """The heartbeat of one process, and its view of the others'.

    Args:
        store: a connection of its own to a store of all processes, which lives in process 0.
        rank, size: of this process and of all.
        together: waits for all processes, once each has written its first beat.
    """

    def __init__(self, store: Any, rank: int, size: int, together: Callable[[], object]) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._beats = [f"beat/{number}" for number in range(size)]
        self._notices = [f"notice/{number}" for number in range(size)]
        store.set(self._beats[rank], "0")
        store.set(self._notices[rank], "-")
        if rank == 0:
            store.set("dead", "-")
        together()
        self._missed, self._noticed = [0] * size, [False] * size
        self._dead: list[int] | None = None
        self._store_lost = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ontrain heartbeat", daemon=True)
        self._thread.start()
        atexit.register(self.stop)

    def stop(self) -> None:
        """End the heartbeat."""
        self._stopped.set()
        self._thread.join(timeout=5)

    def explain(self, doing: str, error: BaseException) -> ProcessError:
        """Find out which processes have ended, after `doing` something with them failed; takes some seconds."""
        with contextlib.suppress(RuntimeError):
            self._store.set(self._notices[self._rank], "+")
        end = time.monotonic() + _GRACE
        while time.monotonic() < end and not self._store_lost and self._dead is None:
            gone = self._gone()
            if gone and all(self._noticed[other] or other in gone for other in range(self._size)):
                break
            time.sleep(0.1)
        gone = [0] if self._store_lost else self._agreed(self._gone())
        if self._rank == 0:
            time.sleep(2 * self._period())  # the store goes with this process: let the others read it
        reason = f"{doing} failed: {str(error).strip().partition(chr(10))[0].partition('. This is typically')[0]}"
        if gone:
            return ProcessError(
                f"{named(gone)} of {self._size} {'has' if len(gone) == 1 else 'have'} died or ended",
                reason=reason,
                way_out="look for the first error in its own output, and go on from the last checkpoint",
            )
        absent = [other for other in range(self._size) if not self._noticed[other] and other != self._rank]
        return ProcessError(
            f"{named(absent)} of {self._size} did not take part" if absent else "the processes lost each other",
            reason=f"{reason}; the process is alive" if absent else reason,
            way_out="all processes must make the same number of steps, and save, at the same times; "
            "for slow ones raise the option distributed.timeout",
        )

    def _period(self) -> float:
        return _PERIOD * max(1.0, self._size / 64)

    def _gone(self) -> list[int]:
        return [other for other, missed in enumerate(self._missed) if missed >= _MISSED and other != self._rank]

    def _agreed(self, gone: Sequence[int]) -> list[int]:
        """The first finding holds for all: who reads it ends next, and must not be taken for the cause."""
        if self._dead is not None or not gone:
            return list(self._dead or [])
        try:
            said = self._store.compare_set("dead", "-", " ".join(map(str, gone))).decode()
        except RuntimeError:
            return [0]
        return [int(number) for number in said.split()]

    def _run(self) -> None:
        before: list[bytes] = []
        beats = 0
        while not self._stopped.wait(self._period()):
            beats += 1
            try:
                self._store.set(self._beats[self._rank], str(beats))
                found = self._store.multi_get([*self._beats, *self._notices, "dead"])
            except RuntimeError:
                self._store_lost = True
                return
            now, notices = found[: self._size], found[self._size : -1]
            if before:
                self._missed = [
                    missed + 1 if new == old else 0 for missed, new, old in zip(self._missed, now, before, strict=True)
                ]
            before = now
            self._noticed = [notice == b"+" for notice in notices]
            if found[-1] != b"-":
                self._dead = [int(number) for number in found[-1].split()]


def open_store(address: str, port: int | None, timeout: timedelta) -> tuple[Any, int]:
    """Open a store at a free port, or connect to the one at `port`; return it with its port."""
    store = TCPStore(address, port or 0, is_master=port is None, wait_for_workers=False, timeout=timeout)
    return store, store.port


def named(ranks: Sequence[int]) -> str:
    """Ranks as an error names them: "rank 1", "ranks 1, 3"."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
