"""What a session did and when, written as onnxruntime writes it: a Chrome trace."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

__all__ = ["Trace"]


class Trace:
    """Records events from its making on, if the options ask for profiling.

    Attributes:
        start: when it began, in nanoseconds of `time.monotonic_ns()`.

    Args:
        options: session options, or None.
    """

    def __init__(self, options: Any) -> None:
        self.start = time.monotonic_ns()
        self._prefix = str(options.profile_file_prefix) if options is not None and options.enable_profiling else None
        self._events: list[dict[str, Any]] = []

    @contextlib.contextmanager
    def event(self, name: str) -> Iterator[None]:
        """Record how long the block takes."""
        if self._prefix is None:
            yield
            return
        before = time.monotonic_ns()
        try:
            yield
        finally:
            self._events.append({
                "cat": "Session", "pid": os.getpid(), "tid": threading.get_ident(),
                "dur": (time.monotonic_ns() - before) // 1000, "ts": (before - self.start) // 1000,
                "ph": "X", "name": name, "args": {},
            })  # fmt: skip

    def write(self) -> str:
        """Write the events as a JSON list and stop recording; return the path, or "" if there was no profiling."""
        if self._prefix is None:
            return ""
        path = f"{self._prefix}_{time.strftime('%Y-%m-%d_%H-%M-%S')}_{self.start}.json"
        with open(path, "w", encoding="utf-8") as file:
            json.dump(self._events, file)
        self._prefix = None
        return path
