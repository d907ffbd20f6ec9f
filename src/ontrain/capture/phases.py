"""What comes before a first step, and what each part of it takes: said to the logger "ontrain.phases"."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

__all__ = ["Clock", "show_phases", "tell_phases"]

_logger = logging.getLogger("ontrain.phases")


def show_phases() -> None:
    """Have phases said from now on: to the handlers that logging has, or to standard error if it has none."""
    _logger.setLevel(logging.INFO)
    if not _logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("ontrain: %(message)s"))
        _logger.addHandler(handler)


def tell_phases(what: str, seconds: Mapping[str, float]) -> None:
    """Say what was done, and the seconds of each part that took any."""
    if _logger.isEnabledFor(logging.INFO):
        parts = ", ".join(f"{name} {took:.2f}" for name, took in seconds.items() if took > 0)
        _logger.info("%s in %.2f s (%s)", what, sum(seconds.values()), parts)


class Clock:
    """What each phase took.

    Args:
        phases: their names.

    Attributes:
        seconds: of each.
    """

    def __init__(self, *phases: str) -> None:
        self.seconds = dict.fromkeys(phases, 0.0)
        self._last = time.perf_counter()

    def lap(self, phase: str) -> None:
        """Count the time since the last lap for a phase."""
        now = time.perf_counter()
        self.seconds[phase] += now - self._last
        self._last = now
