"""Which of the seven days' parts belong to a commit: successive days of commits take turns.

By the calendar, parts of Saturday would never run where nobody lands on Saturdays. By the number of days that have
commits, seven days with landings in a row run everything, however far apart they are, and the same commit always runs
the same parts. What the clock cut off in one round of seven days comes sooner in another: each round is a turn.
"""

from __future__ import annotations

import datetime
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

from tests.thorough.parts import DAYS

__all__ = ["turn_and_day", "turn_and_day_of_history"]


def turn_and_day(dates: Iterable[str]) -> tuple[int, int]:
    """Return how often all days have been in a history with commits at these dates, and the day, 0 to 6."""
    return divmod(len(set(dates)), DAYS)


def turn_and_day_of_history(folder: Path, today: datetime.date | None = None) -> tuple[int, int]:
    """Return turn and day of the commit that is checked out; without a whole history, those of the calendar."""
    today = today or datetime.date.today()
    shallow = _git(folder, "rev-parse", "--is-shallow-repository")
    # Of a folder inside some other repository the history is that one's.
    top = _git(folder, "rev-parse", "--show-toplevel")
    if shallow != "false" or top is None or Path(top).resolve() != folder.resolve():
        return divmod(today.toordinal(), DAYS)
    return turn_and_day((_git(folder, "log", "--format=%cd", "--date=format-local:%Y-%m-%d") or "").split())


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], check=True, capture_output=True, text=True,
            env={**os.environ, "TZ": "UTC"},
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
