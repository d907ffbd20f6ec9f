"""Between a run and the person who watches it: lines, a progress bar, Ctrl-C, and the one message of an error."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from harness.files import DataError
from ontrain.errors import NonFiniteLossError, OntrainError


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM: the update was finished and a checkpoint written."""


def fail(message: str, code: int) -> NoReturn:
    """End the script with a message."""
    print(f"error: {message}", file=sys.stderr)
    raise typer.Exit(code)


@contextmanager
def ended(non_finite: str = "", again: str = "what is finished stays: give the same command again") -> Iterator[None]:
    """Turn what went wrong into one message and an exit code.

    Args:
        non_finite: what is said of a loss that is no number.
        again: how an interrupted run goes on.
    """
    try:
        yield
    except NonFiniteLossError as error:
        fail(f"{error}{non_finite}", 1)
    except (DataError, OntrainError, OSError) as error:
        fail(str(error), 2)
    except Interrupted as error:
        fail(f"{error}; {again}", 130)
    except KeyboardInterrupt:
        print(f"\ninterrupted; {again}", file=sys.stderr)
        raise typer.Exit(130) from None


def speaker(*, quiet: bool = False) -> Console:
    """Return where a run says what it does; lines stay lines."""
    return Console(soft_wrap=True, markup=False, highlight=False, quiet=quiet)


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

    before = {int(number): signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, stop)
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
