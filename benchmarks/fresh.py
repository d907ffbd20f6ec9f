"""Measurements in a process of their own: what ran before leaves nothing behind."""

from __future__ import annotations

import json
import subprocess
import sys

__all__ = ["in_fresh_process", "report"]

_MARK = "@"


def report(figures: dict[str, float]) -> None:
    """Print figures for the process that waits for them."""
    print(_MARK + json.dumps(figures))


def in_fresh_process(module: str, *arguments: str) -> dict[str, float]:
    """Run `python -m module arguments` and return what it reported."""
    command = [sys.executable, "-m", module, *arguments]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    line = next(line for line in printed.splitlines() if line.startswith(_MARK))
    figures: dict[str, float] = json.loads(line.removeprefix(_MARK))
    return figures
