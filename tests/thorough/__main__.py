"""Runs the parts of the thorough run.

    python -m tests.thorough                         all, one after another
    python -m tests.thorough --today                 those of the commit that is checked out, as CI does
    python -m tests.thorough --part "mutants 1/7"    one; may be repeated
    python -m tests.thorough --list                  what there is
    python -m tests.thorough --write                 put the results into docs/thorough.md as they come

Exit code: 0 if no part fails that can run here, else 1. A part that the clock stops has not failed: it is said, and
written down as what it is.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from tests.slices import beginning_elsewhere
from tests.thorough.page import Row, read_rows, render, today, versions
from tests.thorough.parts import PARTS, Part, parts_of
from tests.thorough.rotation import turn_and_day_of_history

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "thorough.md"
TODAYS_MINUTES = 8.0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.thorough", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--today", action="store_true", help="the parts of this commit's day")
    parser.add_argument("--part", action="append", choices=[part.name for part in PARTS], metavar="NAME")
    parser.add_argument("--list", action="store_true", help="print the parts and run nothing")
    parser.add_argument("--write", action="store_true", help="write docs/thorough.md")
    parser.add_argument("--minutes", type=float, help="for all chosen parts together (8 with --today, else no limit)")
    options = parser.parse_args(arguments)
    turn, day = turn_and_day_of_history(ROOT) if options.today else (0, 0)
    chosen = beginning_elsewhere(parts_of(day), turn) if options.today else PARTS
    chosen = [part for part in PARTS if part.name in options.part] if options.part else chosen
    if options.list:
        for part in chosen:
            print(f"day {part.day}  {part.name:22} {part.text()}")
        return 0
    minutes = options.minutes or (TODAYS_MINUTES if options.today else None)
    end = None if minutes is None else time.monotonic() + 60 * minutes
    failed = [part.name for part in chosen if not _passes(part, turn, end, options.write)]
    print(f"thorough: {len(failed)} of {len(chosen)} parts failed" + (f": {', '.join(failed)}" if failed else ""))
    return bool(failed)


def _passes(part: Part, turn: int, end: float | None, write: bool) -> bool:
    print(f"\n-- {part.name}: {part.text()}", flush=True)
    missing = part.missing()
    if missing is not None:
        print(f"left out: {missing}")
        _note(part, f"left out: {missing}", write)
        return True
    code, result = _run(part, turn, None if end is None else end - time.monotonic())
    result = f"**failed**: {result}" if code else result
    print(f"-- {part.name}: {result}", flush=True)
    _note(part, result, write)
    return code == 0


def _run(part: Part, turn: int, seconds: float | None) -> tuple[int, str]:
    """Return the exit code, 0 if the clock stopped it, and the last line that the command prints."""
    process = subprocess.Popen(
        part.argv(turn), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    stopped = threading.Event()

    def stop() -> None:
        stopped.set()
        os.killpg(process.pid, signal.SIGKILL)  # with the processes that it has started

    watch = threading.Timer(max(seconds, 1), stop) if seconds is not None else None
    if watch is not None:
        watch.start()
    last = ""
    assert process.stdout is not None
    for line in process.stdout:
        print(line, end="", flush=True)
        last = line.strip(" =\n") or last
    code = process.wait()
    if watch is not None:
        watch.cancel()
    return (0, f"**not finished**, stopped by the clock at: {last}") if stopped.is_set() else (code, last)


def _note(part: Part, result: str, write: bool) -> None:
    if write:
        rows = {**read_rows(PAGE), part.name: Row(today(), result, versions(ROOT / part.interpreter()))}
        PAGE.write_text(render(rows))


if __name__ == "__main__":
    raise SystemExit(main())
