"""How fast a run is, pauses left out, and what its loss means."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def perplexity(loss: float) -> float:
    """Among how many equally likely tokens the model hesitates. Above e^700 a float ends."""
    return math.exp(min(loss, 700.0))


class Meter:
    """Counts what was trained on, and the time that training took: sequences and real tokens of all processes.

    The first update, in which a model is captured and planned, is timed apart; checkpoints are pauses. `clock` gives
    seconds from anywhere on.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._since, self._paused = clock, clock(), 0.0
        self._window, self._whole, self._seconds = [0, 0], [0, 0], 0.0
        self.updates = self.sequences = self.tokens = 0
        self.first_seconds = 0.0

    @property
    def train_seconds(self) -> float:
        """Of all updates, the first included."""
        return self.first_seconds + self._seconds + self._elapsed()

    def add(self, sequences: int, tokens: int) -> None:
        """Count an update that ends now: sequences of all processes, and their tokens without padding."""
        self.updates, self.sequences, self.tokens = self.updates + 1, self.sequences + sequences, self.tokens + tokens
        if self.updates == 1:
            self.first_seconds = self._elapsed()
            self._restart()
        else:
            self._window = [self._window[0] + sequences, self._window[1] + tokens]

    def read(self) -> tuple[float, float] | None:
        """Return sequences and tokens a second since the last reading, and begin anew; None after the first update."""
        seconds, window = self._elapsed(), self._window
        self._restart()
        if not window[0]:
            return None
        self._seconds += seconds
        self._whole = [self._whole[0] + window[0], self._whole[1] + window[1]]
        return window[0] / seconds, window[1] / seconds

    def overall(self) -> tuple[float, float] | None:
        """Return sequences and tokens a second of all updates but the first; None if there was no other."""
        seconds = self._seconds + (self._elapsed() if self._window[0] else 0.0)
        counts = [whole + window for whole, window in zip(self._whole, self._window, strict=True)]
        return (counts[0] / seconds, counts[1] / seconds) if counts[0] else None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out work that is no training."""
        start = self._clock()
        try:
            yield
        finally:
            self._paused += self._clock() - start

    def _elapsed(self) -> float:
        return self._clock() - self._since - self._paused

    def _restart(self) -> None:
        self._since, self._paused, self._window = self._clock(), 0.0, [0, 0]
