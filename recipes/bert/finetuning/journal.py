"""What a run says while it trains: a log of all updates, a bar in a terminal; and how Ctrl-C is heard."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from corpus.workspace import DataError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

__all__ = ["Interrupted", "interruptible", "log", "losses_until", "progress"]

_LOG = "train_log.jsonl"


class Interrupted(KeyboardInterrupt):
    """Ctrl-C: the update was finished and a checkpoint written."""


def losses_until(output: Path, upto: int) -> list[float]:
    """Losses of the updates before; rows after the checkpoint, and a torn one, are taken out of the file."""
    path, kept = output / _LOG, list[str]()
    if path.is_file() and upto:
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                break
            if row["step"] <= upto:
                kept.append(line)
    try:
        output.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror}") from None
    return [json.loads(line)["loss"] for line in kept]


@contextmanager
def log(output: Path) -> Iterator[Callable[[dict[str, Any]], None]]:
    """What adds a row to the log."""
    path = output / _LOG
    with path.open("a", encoding="utf-8", buffering=1) as file:

        def add(row: dict[str, Any]) -> None:
            try:
                file.write(json.dumps(row) + "\n")
            except OSError as error:
                raise DataError(
                    f"{path} cannot be written ({error.strerror}); the checkpoints before stay: make room and give "
                    "the same command again"
                ) from None

        yield add


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C is remembered, so that the update is finished; a second one stops at once."""
    pressed = False

    def remember(*_: Any) -> None:
        nonlocal pressed
        pressed = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, remember)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def progress(console: Console, total: int, start: int) -> Iterator[Callable[[int], None]]:
    """A bar in a terminal, nothing elsewhere; the function tells it how many updates are made."""
    columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    live = console.is_terminal and not console.is_dumb_terminal
    with Progress(*columns, console=console, transient=True, disable=not live) as bar:
        task = bar.add_task("", total=total, completed=start)
        yield lambda update: bar.update(task, completed=update)
