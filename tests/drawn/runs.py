"""Runs cases, in this process or in several, and counts what became of them."""

from __future__ import annotations

import multiprocessing
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial

import torch

from tests.drawn.judge import VERDICTS, Outcome
from tests.drawn.kinds import draw_and_judge

__all__ = ["run", "table"]


def run(kind: str, seed: int, numbers: range, only: Sequence[str] = (), workers: int = 1) -> Iterator[Outcome]:
    """The outcomes of a kind, in the order of their numbers.

    Raises:
        RuntimeError: a process died; the text names the first number without an outcome.
    """
    case = partial(draw_and_judge, kind, seed, only=only)
    if workers == 1:
        yield from map(case, numbers)
        return
    done = 0
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=_begin) as pool:
        try:
            for outcome in pool.map(case, numbers):
                done += 1
                yield outcome
        except BrokenProcessPool as error:
            raise RuntimeError(f"a process died at case {numbers[done]} of {kind}, or soon after it") from error


def _begin() -> None:
    """One thread for each process, and no warnings of what is drawn on purpose."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)


def table(outcomes: Sequence[Outcome]) -> str:
    """Counts of verdicts by kind and family; known differences are in a column of their own."""
    columns = [*VERDICTS, "known"]
    lines = [f"{'kind':<11}{'family':<32}{'runs':>6}" + "".join(f"{name:>13}" for name in columns)]
    rows = sorted({(outcome.kind, outcome.family) for outcome in outcomes})
    for kind, family in [*rows, ("all", "")]:
        group = [o for o in outcomes if kind == "all" or (o.kind, o.family) == (kind, family)]
        counts = Counter("known" if outcome.known else outcome.verdict for outcome in group)
        cells = "".join(f"{counts[name]:>13}" for name in columns)
        lines.append(f"{kind:<11}{family:<32}{len(group):>6}{cells}")
    return "\n".join(lines)
