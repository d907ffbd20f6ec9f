"""How a process that measures is driven: a line `N` on standard input makes N steps and is answered with their times.

Knows nothing of torch or ontrain, so that peers in environments of their own speak the same.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Mapping

__all__ = ["serve"]


def serve(
    start: Callable[[], Callable[[], float]], batches: int, *, memory: Callable[[], int] | None = None,
    facts: Callable[[], Mapping[str, float]] | None = None,
) -> None:  # fmt: skip
    """Answer until standard input ends: first once by itself, then each line with times, page faults and memory.

    Args:
        start: prepares, inside the time of the first step, and returns what makes a step and gives its loss.
        batches: how many different ones the steps go through.
        memory: the most bytes taken so far; by default the process's largest resident size.
        facts: what else is known after the first step, for the first answer.
    """
    memory = memory or _resident
    before = memory()
    started = time.perf_counter()
    step = start()
    loss = step()
    first = time.perf_counter() - started
    more = dict(facts()) if facts is not None else {}
    _answer({"first": first, "loss": loss, "before": before, "batches": batches, "facts": more})
    for line in sys.stdin:
        times, faults = [], []
        for _ in range(int(line)):
            held = _faults()
            started = time.perf_counter()
            loss = step()
            times.append(time.perf_counter() - started)
            faults.append(_faults() - held)
        _answer({"times": times, "faults": faults, "peak": memory(), "loss": loss})


def _resident() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def _answer(message: dict[str, object]) -> None:
    print("@" + json.dumps(message), flush=True)
