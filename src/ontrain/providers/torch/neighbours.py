"""Other work on the machine: how long it keeps our threads waiting, and what they do about it.

ATen and oneDNN give each thread an equal part of a call, and the call ends with the last of them. GNU's OpenMP has
those that are ready spin for milliseconds, which is the fastest on idle cores. Where another process wants a core, that
spends the core on nothing: our own late thread is kept from it, and of the system's fair share half is spun away. So
as long as threads have to wait for cores, they sleep instead, and are given slices of a tenth of a millisecond, so that
one that is woken by another runs at once. The parts stay as they are, and so does every result, to the last bit.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import torch

__all__ = ["VARIABLE", "Neighbours", "delay", "neighbours"]

VARIABLE = "ONTRAIN_YIELD"
"""Of the environment: 0 has threads spin whatever else runs."""
_LOOK = 0.3
"""Seconds between two looks."""
_MANY, _FEW = 0.55, 0.45
"""Shares of the time that threads, together, wait for a core: from which on they sleep, and below which they spin.

A process that wants a core for four fifths of the time has two threads wait for half of it. Spinning and sleeping are
equal then. Beside less work a step of small calls takes up to 1.4 times as long if its threads sleep.
"""
_CALM = 5
"""Looks in a row with few waits until threads spin again."""
_BUSY = 0.1
"""Share of the busiest thread's time that a thread runs or waits for a core if it is one that computes."""
_LITTLE = 0.02
"""Seconds that say nothing."""
_SLICE = 100_000
"""Nanoseconds, the shortest that Linux gives."""
_SET_SCHEDULER = {"x86_64": 314, "aarch64": 274}
"""Numbers of sched_setattr(2), by machine."""
_FOLDER = Path("/proc/self/task")


def _waited(task: str) -> tuple[float, float] | None:
    """Return the seconds that a thread ran and that it waited for a core, or None where the system does not say."""
    try:
        ran, delayed, *_ = (_FOLDER / task / "schedstat").read_bytes().split()
    except (OSError, ValueError):
        return None
    return int(ran) * 1e-9, int(delayed) * 1e-9


def _tasks() -> list[str]:
    """Return the numbers of this process's threads; none where the system does not say."""
    try:
        return os.listdir(_FOLDER)
    except OSError:
        return []


def delay() -> float:
    """Return the seconds that all threads of this process have waited for cores so far; 0 where none says so."""
    return sum(times[1] for task in _tasks() if (times := _waited(task)) is not None)


class Neighbours:
    """Looks now and then how long threads wait for cores, and chooses how they wait for one another."""

    def __init__(self) -> None:
        self.sleeping = False
        """Whether threads sleep, not spin, while they wait for one another."""
        self._due, self._calm = 0.0, 0
        self._seen = dict[str, tuple[float, float]]()
        self._end: Callable[[], None] | None = None
        self._hurried = set[str]()
        self._lock = threading.Lock()

    def look(self) -> None:
        """Look, if it is time to; called between calls of plans, whose results do not depend on it."""
        now = time.perf_counter()
        if (
            now < self._due
            or torch.get_num_threads() == 1
            or os.environ.get(VARIABLE) == "0"
            or not self._lock.acquire(blocking=False)
        ):
            return
        try:
            self._due = now + _LOOK
            seen = {task: times for task in _tasks() if (times := _waited(task)) is not None}
            spent = {
                task: (ran - self._seen[task][0], late - self._seen[task][1])
                for task, (ran, late) in seen.items() if task in self._seen
            }  # fmt: skip
            self._seen = seen
            # Between its steps a process may do nothing for long: what counts is when its threads wanted to run.
            wanted = max((ran + late for ran, late in spent.values()), default=0.0)
            if wanted > _LITTLE:
                busy = {task: late for task, (ran, late) in spent.items() if ran + late > _BUSY * wanted}
                self._judge(sum(busy.values()) / wanted, busy)
        finally:
            self._lock.release()

    def _judge(self, share: float, busy: Iterable[str]) -> None:
        if share > _MANY:
            self._calm = 0
            self._sleep(busy)
        elif self.sleeping:
            self._calm = self._calm + 1 if share < _FEW else 0
            if self._calm >= _CALM:
                self._spin()

    def _sleep(self, busy: Iterable[str]) -> None:
        if not self.sleeping:
            self.sleeping, end = True, threading.Event()
            thread = threading.Thread(target=_own_threads, args=(end,), name="ontrain-neighbours", daemon=True)
            thread.start()
            self._end = functools.partial(_join, thread, end)
            # Python ends a thread that is left at its exit, and in one of torch's operators that ends the process.
            atexit.register(self._end)
        for task in set(busy) - self._hurried:
            _set_slice(int(task), _SLICE)
            self._hurried.add(task)

    def _spin(self) -> None:
        self.sleeping, self._calm = False, 0
        if self._end is not None:
            atexit.unregister(self._end)
            self._end()
        for task in self._hurried:
            _set_slice(int(task), 0)
        self._hurried.clear()

    def forget(self) -> None:
        """Start anew in a process that was forked: it has none of the threads."""
        hurried = self.sleeping
        type(self).__init__(self)
        if hurried:
            _set_slice(0, 0)


def _own_threads(end: threading.Event) -> None:
    """Be a thread with workers of its own: of more threads than cores GNU's OpenMP lets none spin."""
    torch.ones(1 << 20, device="cpu").add_(1.0)
    end.wait()


def _join(thread: threading.Thread, end: threading.Event) -> None:
    end.set()
    thread.join()


class _Attributes(ctypes.Structure):
    """`struct sched_attr` of sched_setattr(2)."""

    _fields_ = (
        ("size", ctypes.c_uint32), ("policy", ctypes.c_uint32), ("flags", ctypes.c_uint64), ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32), ("runtime", ctypes.c_uint64), ("deadline", ctypes.c_uint64),
        ("period", ctypes.c_uint64),
    )  # fmt: skip


def _set_slice(task: int, nanoseconds: int) -> None:
    """Set how long a thread of the ordinary kind runs at a time, 0 for what is usual. Linux before 6.12 ignores it."""
    number = _SET_SCHEDULER.get(os.uname().machine) if sys.platform == "linux" else None
    if number is None:
        return
    with contextlib.suppress(OSError, ProcessLookupError):  # the thread may have ended
        if os.sched_getscheduler(task) != os.SCHED_OTHER:
            return
        nice = os.getpriority(os.PRIO_PROCESS, task)
        new = _Attributes(ctypes.sizeof(_Attributes), os.SCHED_OTHER, 0, nice, 0, nanoseconds, 0, 0)
        ctypes.CDLL(None).syscall(number, task, ctypes.byref(new), 0)


neighbours = Neighbours()
"""Of this process."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=neighbours.forget)
