"""Which formulation of a matrix product is taken: the fastest on this machine, or the one that is asked for."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol
from weakref import WeakSet

import torch
from filelock import Timeout

from ontrain.providers.torch.expected import (
    distance,
    distance_to_known,
    expected,
    expected_rate,
    is_known,
    layout_of,
)
from ontrain.providers.torch.packing import HAS_KERNELS
from ontrain.providers.torch.timings import (
    ATEN,
    Entry,
    Timings,
    choice,
    machine,
    read_timings,
    sizes_of,
    tuning_file,
    update_timings,
)
from ontrain.providers.torch.weights import LINEAR

__all__ = ["Choices", "Forced", "Measure", "Tuning", "formulations", "open_tuning", "plausible", "rate_of"]

_logger = logging.getLogger("ontrain.providers.torch.tuning")

Measure = Callable[[], Mapping[str, float] | None]
"""Returns the seconds of each formulation, or None if other work on the machine disturbed them."""

_SLOWER = 4.0
"""How many times as long as its shape predicts the fastest formulation may take."""
_APART = 8.0
"""How many times as long as the fastest the slowest formulation may take."""
_RATE = 5e11
"""Floating-point operations a second that no core reaches: two units of 16 numbers at 5 GHz do 3.2e11."""
_BANDWIDTH = 5e9
"""Bytes a second that every machine moves."""
_CLEARLY = 1.25
"""How many times as long as another a formulation must take, in two measurements, until it is replaced."""
_GUESSED = 1.1
"""The same of a formulation that was taken unmeasured."""
_FAR = 4
"""How many times as large the larger of two products may be between which one of the same choice is not measured."""
_PAUSE, _SHARE = 20.0, 200.0
"""Seconds at least between two looks at choices, and the time between them as a multiple of what a look takes."""
_NEW_PAUSE, _NEW_SHARE = 2.0, 20.0
"""The same while some product was never measured, on a processor of which the package's table says nothing."""
_AT_ONCE, _OF_TIME = 0.3, 0.05
"""Seconds that measuring may take while plans are made, and the share of the time since the first of them."""


def formulations() -> tuple[str, ...]:
    """Return the names of the formulations, the preferred first; a build of torch may lack oneDNN."""
    return (ATEN, *["packed"] * HAS_KERNELS, *["linear"] * (LINEAR is not None))


class Choices(Protocol):
    """Chooses formulations.

    Attributes:
        free: whether the fastest is looked for; else somebody asked for a formulation by name.
    """

    free: bool

    def fastest(self, product: str, names: Collection[str], measure: Measure) -> str:
        """Return the name of the formulation to take for a product; see `Tuning.fastest`."""
        ...

    def review(self) -> None:
        """Look at a choice again if it is time to; called between steps."""
        ...

    def version(self) -> int:
        """Return a number that changes whenever a choice has been replaced: plans with the old one are made anew."""
        ...


class Forced:
    """The same formulation for every product, whatever it takes. A product that the kernel cannot do stays ATen's."""

    free = False

    def __init__(self, name: str) -> None:
        self.name = name

    def fastest(self, product: str, names: Collection[str], measure: Measure) -> str:
        """Return the one formulation."""
        return self.name

    def review(self) -> None:
        """Do nothing."""

    def version(self) -> int:
        """Return 0."""
        return 0


class Tuning:
    """Choices that follow from measurements, kept in a file.

    A choice is made when a plan first needs it, and holds: of processes that measure the same product at the same time
    the first to write decides for all. So a run that is resumed rounds as before. On a processor of a kind that the
    package's own table knows, a product takes what is the fastest for the most similar one, measured or in the table,
    and is measured between steps. On another processor measuring takes a small share of the time, and a product that
    comes when that is spent is treated likewise. What was disturbed by other work, or is not what the
    shape predicts, decides nothing: then the table answers, and so it does where the file cannot be written. A choice
    that is clearly slow, in two undisturbed measurements between steps, is replaced, and sooner where it was taken
    unmeasured; none is while torch is told to be deterministic.

    Args:
        file: see `read_timings`. One that is torn, of another form or unreadable is as if it were not there.
    """

    free = True

    def __init__(self, file: Path) -> None:
        self.file = file
        self._read = read_timings(file)
        self._chosen: dict[tuple[str, str], str] = {}
        self._measures: dict[tuple[str, str], Measure] = {}
        self._suspects: set[tuple[str, str]] = set()
        self._turn, self._replaced = 0, 0
        self._began, self._spent = math.inf, 0.0
        self._due = time.monotonic() + _PAUSE
        self._can_write = True
        self._lock = threading.Lock()
        _open.add(self)

    def after_fork(self) -> None:
        """Have a lock of one's own in a process that was forked: whoever held the old one is not there."""
        self._lock = threading.Lock()

    def fastest(self, product: str, names: Collection[str], measure: Measure) -> str:
        """Return the name of the formulation to take for a product.

        Args:
            product: rows x inner size x columns, and what tells it from others: "1024x768x3072 NTN + bias".
            names: the formulations that there are, the preferred first. Entries of others are as if there were none.
            measure: called if nothing plausible is known yet.
        """
        key = machine(), product
        with self._lock:
            if key not in self._chosen:
                self._measures[key] = measure
                known = self._known(self._read, key, names)
                self._chosen[key] = (known or self._settle(key, names, measure)).taken
            return self._chosen[key]

    def version(self) -> int:
        """Return how many choices were replaced."""
        return self._replaced

    def review(self) -> None:
        """Measure one product again if it is time to, and replace a choice that turned out to be clearly slow."""
        if time.monotonic() < self._due or not self._measures or not self._can_write:
            return
        if torch.are_deterministic_algorithms_enabled() or not self._lock.acquire(blocking=False):
            return
        try:
            begin = time.monotonic()
            # Those that were never measured come first, and a suspect is not left waiting.
            mine = [key for key in self._measures if key[0] == machine()]
            waiting = [key for key in mine if key in self._suspects or not self._seconds(key)] or mine
            if waiting:
                self._turn += 1
                key = waiting[self._turn % len(waiting)]
                self._judge(key, self._measures[key]())
            now = time.monotonic()
            new = not is_known() and any(not self._seconds(key) for key in mine)
            pause, share = (_NEW_PAUSE, _NEW_SHARE) if new else (_PAUSE, _SHARE)
            self._due = now + max(pause, share * (now - begin))
        finally:
            self._lock.release()

    def _seconds(self, key: tuple[str, str]) -> Mapping[str, float]:
        entry = self._read.get(key[0], {}).get(key[1])
        return entry.seconds if entry is not None else {}

    def _judge(self, key: tuple[str, str], times: Mapping[str, float] | None) -> None:
        if times is None or not plausible(key[1], times, rate_of(self._read, key[0])):
            return
        taken, best = self._chosen[key], choice(key[1], times)
        if times[taken] <= (_CLEARLY if self._seconds(key) else _GUESSED) * times[best]:
            self._suspects.discard(key)
            if not self._seconds(key):
                self._write(key, Entry(taken, times), over=True)
        elif key not in self._suspects:
            self._suspects.add(key)
        elif self._write(key, Entry(best, times), over=True) is not None:
            self._suspects.discard(key)
            self._chosen[key] = best
            self._replaced += 1
            _logger.info("%s is multiplied as %r from now on, not as %r: %s", key[1], best, taken, times)

    def _known(self, timings: Timings, key: tuple[str, str], names: Collection[str]) -> Entry | None:
        """What a file says of a product, if it is of these formulations and plausible."""
        entry = timings.get(key[0], {}).get(key[1])
        if entry is None or (entry.seconds and set(entry.seconds) != set(names)):
            return None
        if entry.seconds and not plausible(key[1], entry.seconds, rate_of(timings, key[0])):
            return None
        taken = entry.taken or choice(key[1], entry.seconds)
        return replace(entry, taken=taken) if taken in names else None

    def _settle(self, key: tuple[str, str], names: Collection[str], measure: Measure) -> Entry:
        similar = self._between(key, names)
        if similar is None and not self._may_measure():
            similar = self._likely(key, names)
        times = self._measured(measure) if self._can_write and similar is None else None
        if similar is not None:
            entry = Entry(similar)  # measured at a review
        elif times is not None and plausible(key[1], times, rate_of(self._read, key[0])):
            entry = Entry(choice(key[1], times), dict(times))
        else:
            entry = Entry(expected(key[1], names))
        return self._write(key, entry, names=names) or Entry(expected(key[1], names))

    def _may_measure(self) -> bool:
        if is_known():
            return False  # the table was measured on such a processor: a first step is not kept waiting
        now = time.monotonic()
        self._began = min(self._began, now)
        return self._spent <= _AT_ONCE + _OF_TIME * (now - self._began)

    def _measured(self, measure: Measure) -> Mapping[str, float] | None:
        begin = time.monotonic()
        try:
            return measure()
        finally:
            self._spent += time.monotonic() - begin

    def _alike(self, key: tuple[str, str], names: Collection[str]) -> dict[tuple[int, int, int], str]:
        """What was measured to be the fastest for products in the same layout, by their sizes."""
        kind = layout_of(key[1])
        return {
            sizes_of(product): entry.taken for product in self._read.get(key[0], {})
            if layout_of(product) == kind
            and (entry := self._known(self._read, (key[0], product), names)) is not None and entry.seconds
        }  # fmt: skip

    def _likely(self, key: tuple[str, str], names: Collection[str]) -> str:
        """The fastest formulation of the product of the nearest sizes in the same layout, measured or in the table."""
        product, mine = key[1], sizes_of(key[1])
        measured = {distance(sizes, mine): taken for sizes, taken in self._alike(key, names).items()}
        nearest = min(measured, default=math.inf)
        return measured[nearest] if nearest < distance_to_known(product) else expected(product, names)

    def _between(self, key: tuple[str, str], names: Collection[str]) -> str | None:
        """What was measured to be the fastest for a smaller product and for a larger one that differ in one size."""
        sizes, measured = sizes_of(key[1]), self._alike(key, names)
        for axis, size in enumerate(sizes):
            line = {
                point[axis]: taken
                for point, taken in measured.items()
                if _without(point, axis) == _without(sizes, axis)
            }
            below, above = [n for n in line if n < size], [n for n in line if n > size]
            if below and above and min(above) <= _FAR * max(below) and line[max(below)] == line[min(above)]:
                return line[min(above)]
        return None

    def _write(
        self, key: tuple[str, str], entry: Entry, *, names: Collection[str] = (), over: bool = False
    ) -> Entry | None:
        """Write an entry, unless another process did first, and return what the file holds then; None if it cannot."""

        def add(timings: Timings) -> None:
            if over or self._known(timings, key, names) is None:
                timings.setdefault(key[0], {})[key[1]] = entry
            self._read = timings

        try:
            update_timings(self.file, add)
        except (OSError, Timeout) as error:
            if self._can_write:
                _logger.warning(
                    "%s cannot be written (%s): each matrix product takes the formulation that is known to be fast on "
                    "processors of this kind; set ONTRAIN_CACHE_DIR to a folder that can be written and they are "
                    "measured, or ONTRAIN_TUNE=0", self.file, error,
                )  # fmt: skip
            self._can_write = False
            return None
        return entry if over else self._known(self._read, key, names)


def _without(sizes: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return sizes[:axis] + sizes[axis + 1 :]


_open: WeakSet[Tuning] = WeakSet()


def _after_fork() -> None:
    for tuning in _open:
        tuning.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def plausible(product: str, seconds: Mapping[str, float], rate: float) -> bool:
    """Whether times are what the product's sizes predict.

    Args:
        product: its name.
        seconds: of each formulation.
        rate: floating-point operations a second that this machine is known to reach.
    """
    rows, inner, columns = sizes_of(product)
    work, moved = 2.0 * rows * inner * columns, 4.0 * (rows * inner + inner * columns + rows * columns)
    fastest = min(seconds.values())
    predicted = work / rate + moved / _BANDWIDTH
    return (
        work / fastest <= _RATE * torch.get_num_threads()
        and fastest <= _SLOWER * predicted
        and max(seconds.values()) <= _APART * fastest
    )


def rate_of(timings: Timings, name: str) -> float:
    """Return the highest rate that a machine reached in any product, at least what its kind is known for."""
    threads = torch.get_num_threads()
    rates = [
        2 * math.prod(sizes_of(product)) / min(entry.seconds.values())
        for product, entry in timings.get(name, {}).items() if entry.seconds
    ]  # fmt: skip
    return max([expected_rate() * threads, *(rate for rate in rates if rate <= _RATE * threads)])


def open_tuning() -> Tuning:
    """Return the choices that the user's cache holds, and that are added to it."""
    return Tuning(tuning_file())
