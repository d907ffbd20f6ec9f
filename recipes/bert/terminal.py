"""Between a run and the person who watches it: a progress bar, and what Ctrl-C does."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

__all__ = ["progress", "stopping"]


@contextmanager
def progress(
    console: Console, label: str, steps: int, start: int = 0, *, shown: bool = True
) -> Iterator[Callable[[int], None]]:
    """Show a bar where the console is a terminal, nothing elsewhere; yield what tells it the step."""
    live = console.is_terminal and not console.is_dumb_terminal and not console.quiet and "CI" not in os.environ
    columns = (TextColumn(label), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not (shown and live)) as bar:
        task = bar.add_task("", total=steps, completed=start)
        yield lambda step: bar.update(task, completed=step)


@contextmanager
def stopping() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C, or a scheduler's SIGTERM, into a question for the loop to ask; a second stops at once."""
    asked = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        signal.signal(number, before[number])

    before = {int(one): signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
    for one in before:
        signal.signal(one, stop)
    try:
        yield lambda: asked
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
