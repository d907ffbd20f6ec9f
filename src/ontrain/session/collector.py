"""The cyclic garbage collector, held while a plan is made."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ontrain.locks import Lock

__all__ = ["collector"]


class _Collector:
    """The cyclic collector, held while a plan is made: it would walk all of torch's and the model's objects each time.

    There is one for all threads, so whoever comes first stops it and whoever leaves last lets it go on. A forked child
    has none of the threads that would.
    """

    def __init__(self) -> None:
        self._lock, self._holders, self._running = Lock(), list[int](), False
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    @contextmanager
    def paused(self) -> Iterator[None]:
        with self._lock:
            if not self._holders:
                self._running = gc.isenabled()
                gc.disable()
            self._holders.append(threading.get_ident())
        try:
            yield
        finally:
            with self._lock:
                self._holders.remove(threading.get_ident())
                self._go_on()

    def _go_on(self) -> None:
        if not self._holders and self._running:
            gc.enable()

    def _forked(self) -> None:
        if self._holders:
            self._holders = [thread for thread in self._holders if thread == threading.get_ident()]
            self._go_on()


collector = _Collector()
