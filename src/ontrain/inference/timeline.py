"""What nodes a run consists of, and when each ran: recorded while a session profiles, and else not looked at."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

import onnx_ir as ir

from ontrain.graph import name_of
from ontrain.providers import Executable, NodeTime

__all__ = ["Timeline", "run_plan", "timed_node"]


@dataclass
class Timeline:
    """The calls of a run, in order.

    Attributes:
        start: when it began, in nanoseconds of `time.perf_counter_ns()`.
        calls: each with the provider that ran it, "" for the session's own. Their starts are counted from `start`.
    """

    start: int = field(default_factory=time.perf_counter_ns)
    calls: list[tuple[NodeTime, str]] = field(default_factory=list)

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Record what this thread runs in the block."""
        token = _present.set(self)
        try:
            yield
        finally:
            _present.reset(token)


_present: ContextVar[Timeline | None] = ContextVar("timeline", default=None)


def run_plan(executable: Executable, feeds: Mapping[str, Any], rng: tuple[int, int]) -> dict[str, Any]:
    """Run a plan, call by call with a clock where a timeline is recorded and the provider can."""
    timeline = _present.get()
    if timeline is None:
        return executable.run(feeds, rng=rng)
    began = time.perf_counter_ns() - timeline.start
    outputs, calls = executable.trace(feeds, rng=rng)
    took = time.perf_counter_ns() - timeline.start - began
    # What comes before the first call, feeds and bindings, is in the way of timing it alone.
    offset = began + took - (calls[-1].start + calls[-1].duration if calls else 0)
    timeline.calls += [(replace(call, start=call.start + max(offset, began)), "") for call in calls]
    return outputs


@contextlib.contextmanager
def timed_node(node: ir.Node, *others: ir.Node, provider: str = "") -> Iterator[None]:
    """Record the block as a call of a node, or of several that another provider runs together."""
    timeline = _present.get()
    if timeline is None:
        yield
        return
    before, start = len(timeline.calls), time.perf_counter_ns()
    yield
    if len(timeline.calls) > before:
        return  # a step with a graph inside, or one that another provider runs: its calls are there
    nodes = (node, *others)
    call = NodeTime(
        ", ".join(filter(None, map(name_of, nodes))), " + ".join(n.op_type for n in nodes), start - timeline.start,
        time.perf_counter_ns() - start, 0, 0,
    )  # fmt: skip
    timeline.calls.append((call, provider))
