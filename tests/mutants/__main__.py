"""Puts plausible mistakes into a copy of the sources, one at a time, and looks whether the mirrored tests notice.

    python -m tests.mutants                          all of them; exit code 1 below 95 % killed
    python -m tests.mutants --part 2/3               every third, from the second on
    python -m tests.mutants --only optim/            those whose file or text has this in it
    python -m tests.mutants --list                   what there is, without running anything
    python -m tests.mutants --unmutated              the same tests on the sources as they are: all should pass

A mutant that runs out of time counts as not killed: a slow machine is no proof. The working tree is never changed.
"""

from __future__ import annotations

import argparse
import os
import queue
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutants.mutant import Mutant
from tests.mutants.run import Outcome, Tree
from tests.mutants.table import MUTANTS
from tests.slices import sliced

WANTED = 0.95


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", metavar="TEXT", action="append", help="mutants with this text; may be repeated")
    parser.add_argument("--part", metavar="K/N", default="1/1", help="the K-th of N parts")
    parser.add_argument("--list", action="store_true", help="print the mutants and run nothing")
    parser.add_argument("--unmutated", action="store_true", help="run the tests without the mistakes")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds a mutant (300)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="mutants at a time")
    parser.add_argument("--verbose", action="store_true", help="print what the tests say of those not killed")
    options = parser.parse_args(arguments)
    wanted = [m for m in MUTANTS if not options.only or any(text in str(m) for text in options.only)]
    chosen = sliced(wanted, options.part)
    if options.list:
        for mutant in chosen:
            print(mutant)
        print(f"{len(chosen)} of {len(MUTANTS)} mutants")
        return 0
    outcomes = _run(chosen, options)
    if options.unmutated:
        return _unmutated(outcomes)
    return _summary(outcomes)


def _run(chosen: Sequence[Mutant], options: argparse.Namespace) -> dict[Mutant, Outcome]:
    outcomes: dict[Mutant, Outcome] = {}
    trees: queue.SimpleQueue[Tree] = queue.SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="ontrain-mutants-") as scratch:
        for number in range(options.jobs):
            trees.put(Tree(Path(scratch) / str(number)))

        def run(mutant: Mutant) -> None:
            tree, start = trees.get(), time.perf_counter()
            try:
                outcome = (tree.unmutated if options.unmutated else tree.judge)(mutant, options.limit)
                output = tree.output
            finally:
                trees.put(tree)
            outcomes[mutant] = outcome
            print(f"{outcome.value:10} {time.perf_counter() - start:5.1f} s  {mutant}", flush=True)
            if options.verbose and outcome is not Outcome.KILLED:
                print(output, flush=True)

        with ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(run, chosen))
    return outcomes


def _unmutated(outcomes: dict[Mutant, Outcome]) -> int:
    wrong = [mutant for mutant, outcome in outcomes.items() if outcome is not Outcome.SURVIVED]
    print(f"{len(outcomes) - len(wrong)} of {len(outcomes)} selections of tests pass without a mistake")
    return bool(wrong)


def _summary(outcomes: dict[Mutant, Outcome]) -> int:
    """Print the table of rooms and what was not killed; the last line is the result."""
    rooms = dict.fromkeys(mutant.room for mutant in outcomes)
    print(f"\n{'room':14} {'run':>4} {'killed':>7}")
    for room in rooms:
        counts = Counter(outcome for mutant, outcome in outcomes.items() if mutant.room == room)
        print(f"{room:14} {counts.total():4} {counts[Outcome.KILLED]:7}")
    for mutant, outcome in outcomes.items():
        if outcome is not Outcome.KILLED:
            print(
                f"{outcome.value}: {mutant}\n    by {' '.join(mutant.tests)}"
                + (f" -k {mutant.keyword!r}" * bool(mutant.keyword))
            )
    counts = Counter(outcomes.values())
    killed = counts[Outcome.KILLED] / max(1, len(outcomes))
    print(f"{counts[Outcome.KILLED]} killed of {len(outcomes)} run ({killed:.1%}); the table has {len(MUTANTS)}")
    return int(killed < WANTED or counts[Outcome.UNTESTED] > 0)


if __name__ == "__main__":
    raise SystemExit(main())
