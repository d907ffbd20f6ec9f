"""Interrupts that wait for the end of what they would tear apart. Outside of the rooms, as `locks`.

An exception that Python raises out of a signal's handler passes through whatever runs. Where torch's own code in C++
called the Python that runs, it may find no way out there, and end the process: one Ctrl-C in a notebook, while a module
is traced, would take all that the notebook holds.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

__all__ = ["interrupts_wait"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_log = logging.getLogger(__name__)


@contextmanager
def interrupts_wait(what: str) -> Iterator[None]:
    """Return a context at whose end an interrupt comes that was sent inside; a second one comes at once.

    It holds for SIGINT and SIGTERM in the main thread, where Python runs handlers, if their handlers are functions.

    Args:
        what: is not torn apart, for the message that tells whoever waits.
    """
    waiting: list[tuple[int, FrameType | None]] = []
    before: dict[int, Callable[[int, FrameType | None], Any]] = {}

    def wait(number: int, frame: FrameType | None) -> None:
        if waiting:
            before[number](number, frame)
            return
        waiting.append((number, frame))
        _log.warning("interrupted: this takes effect once %s; another interrupt takes effect at once", what)

    if threading.current_thread() is threading.main_thread():
        for number in map(int, _SIGNALS):
            handler = signal.getsignal(number)
            if callable(handler):
                before[number] = handler
                signal.signal(number, wait)
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is wait:
                signal.signal(number, handler)
        for number, frame in waiting:
            before[number](number, frame)
