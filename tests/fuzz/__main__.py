"""Thousands of mutated and hand-made files, by every way in: `python -m tests.fuzz --seed 1 --count 3000`.

Each case runs in a process with 6 GiB of memory and 20 seconds of processor time, and must end in a named error or a
right result. The table counts what became of them. Whatever else happened is listed, and its file is kept.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.fuzz.pool import fuzz, table
from tests.fuzz.ways import WAYS


def main() -> int:
    """Return 0 if every case ended well."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--from", dest="first", type=int, default=0, help="number of the first case")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--way", action="append", choices=list(WAYS), help="only these ways in")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-failures"), help="where files of bad cases are kept")
    arguments = parser.parse_args()
    outcomes = fuzz(
        arguments.seed,
        range(arguments.first, arguments.first + arguments.count),
        arguments.workers,
        arguments.way,
        arguments.keep,
    )
    print(table(outcomes))
    return 1 if any(outcome.bad for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
