"""Write docs/coverage.md: every model of the zoo, what came of it, and by how much its gradients differ.

python -m tests.models.coverage
"""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import torch

from tests.models.zoo import ZOO, Entry
from tests.models.zoo.judge import Verdict, judge

__all__ = ["PAGE", "row_of", "rows"]

PAGE = Path(__file__).parents[2] / "docs" / "coverage.md"
NEXT = "\n## "
"""Begins what `python -m tests.capture.package_models` writes below the table."""
COLUMNS = ("model", "family", "result", "parameters", "operators", "largest error", "remark")

INTRODUCTION = """\
# Architectures

Written by `python -m tests.models.coverage`; do not edit. Versions: torch {torch}, transformers {transformers}.

Each model is small and random, in training mode with dropout at 0. It is judged in double precision: from equal
weights and batches, ontrain's loss and every gradient are compared with eager PyTorch's. *Largest error* is the error
of the worst gradient, relative to the gradient's norm. Every model is captured once, with a batch of one size. The
same graph is then compared at that size and at another batch size and length; where the model fixes a size, the
remark says why. Some models normalise in single precision whatever precision they are given, and differ by some 1e-7.

{trained} of {all} models train; the others are refused before anything runs, with the reason and a way out.

"""


def row_of(entry: Entry) -> tuple[str, str, str]:
    """Return what an entry's row must say whatever was measured: name, family and result."""
    return entry.name, entry.family, "refused" if entry.refused else "trains"


def rows(page: str) -> list[tuple[str, ...]]:
    """Return the first three columns of each row of a page's first table."""
    table = page.partition(NEXT)[0]
    found = [re.split(r" *\| *", line.strip("| ")) for line in table.splitlines() if line.startswith("| ")]
    return [tuple(cells[:3]) for cells in found[1:]]


def _row(entry: Entry, verdict: Verdict) -> str:
    if verdict.refusal is not None:
        assert entry.refused, f"{entry.name} is refused: {verdict.refusal}"
        remark = f"{verdict.refusal.problem}; way out: {verdict.refusal.way_out}"
        figures = [f"{verdict.parameters:,}", "", ""]
    else:
        assert not entry.refused, f"{entry.name} trains, and its entry says that it is refused"
        remark = f"fixed size: {entry.fixed}" if entry.fixed else ""
        figures = [f"{verdict.parameters:,}", f"{verdict.operators}", f"{verdict.error:.0e}" if verdict.error else "0"]
    return "| " + " | ".join([*row_of(entry), *figures, remark.replace("|", r"\|")]).strip() + " |"


def main() -> None:
    """Judge every model and write the page."""
    import transformers

    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    for entry in ZOO:
        lines.append(_row(entry, judge(entry)))
        print(lines[-1], flush=True)
    trained = sum(not entry.refused for entry in ZOO)
    head = INTRODUCTION.format(
        torch=torch.__version__.split("+")[0], transformers=transformers.__version__, trained=trained, all=len(ZOO)
    )
    _, mark, packages = PAGE.read_text().partition(NEXT)
    PAGE.write_text(head + "\n".join(lines) + "\n" + mark + packages)


if __name__ == "__main__":
    main()
