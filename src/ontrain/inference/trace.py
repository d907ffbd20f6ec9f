"""What a session did and when, written as onnxruntime writes it: a Chrome trace."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

from ontrain.inference.timeline import Timeline

__all__ = ["Trace"]


class Trace:
    """Records events from its making on, if the options ask for profiling.

    Attributes:
        start: when it began, in nanoseconds of `time.monotonic_ns()`.

    Args:
        options: session options, or None.
        provider: whose nodes it records.
    """

    def __init__(self, options: Any, provider: str) -> None:
        self.start, self._provider = time.monotonic_ns(), provider
        self._prefix = str(options.profile_file_prefix) if options is not None and options.enable_profiling else None
        self._events: list[dict[str, Any]] = []

    @property
    def records(self) -> bool:
        """Whether events are recorded."""
        return self._prefix is not None

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
            took = time.monotonic_ns() - before
            self._events.append(_event("Session", name, before - self.start, took, {}))

    @contextlib.contextmanager
    def run(self) -> Iterator[None]:
        """Record a run and each node of it."""
        if self._prefix is None:
            yield
            return
        timeline, before = Timeline(), time.monotonic_ns() - self.start
        try:
            with timeline.recording(), self.event("model_run"):
                yield
        finally:
            for index, (call, provider) in enumerate(timeline.calls):
                arguments = {
                    "op_name": call.operator, "provider": provider or self._provider, "node_index": str(index),
                    "output_size": str(call.output), "mem_bytes_in_use": str(call.memory),
                    "input_type_shape": [{dtype: shape} for dtype, shape in call.inputs],
                    "output_type_shape": [{dtype: shape} for dtype, shape in call.outputs],
                }  # fmt: skip
                name = f"{call.name or call.operator}_kernel_time"
                self._events.append(_event("Node", name, before + call.start, call.duration, arguments))

    def write(self) -> str:
        """Write the events as a JSON list and stop recording; return the path, or "" if there was no profiling."""
        if self._prefix is None:
            return ""
        path = f"{self._prefix}_{time.strftime('%Y-%m-%d_%H-%M-%S')}_{self.start}.json"
        with open(path, "w", encoding="utf-8") as file:
            json.dump(self._events, file)
        self._prefix = None
        return path


def _event(kind: str, name: str, start: int, duration: int, arguments: dict[str, Any]) -> dict[str, Any]:
    """An event in microseconds, with what is below one behind the point, as viewers read it."""
    return {
        "cat": kind, "pid": os.getpid(), "tid": threading.get_ident(), "dur": duration / 1000, "ts": start / 1000,
        "ph": "X", "name": name, "args": arguments,
    }  # fmt: skip
