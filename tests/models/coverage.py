"""Write docs/coverage.md: every model of the zoo, what came of it, and by how much its gradients differ.

    python -m tests.models.coverage [NAME ...]

judges all models, or those named; the rows of the others stay as they are.
"""

from __future__ import annotations

import argparse
import re
import warnings
from collections.abc import Iterable
from pathlib import Path

import torch

from tests.models.zoo import ZOO, Entry
from tests.models.zoo.judge import judge, judge_module

__all__ = ["PAGE", "row_of", "rows"]

PAGE = Path(__file__).parents[2] / "docs" / "coverage.md"
NEXT = "\n## "
"""Begins what `python -m tests.capture.package_models` writes below the table."""
TOLERANCE = 1e-5
COLUMNS = ("model", "family", "result", "road", "parameters", "operators", "largest error", "remark")

INTRODUCTION = """\
# Architectures

Written by `python -m tests.models.coverage`; do not edit. Versions: torch {torch}, transformers {transformers}.

Each model is small and random, in training mode with dropout at 0. It is judged in double precision: from equal
weights and batches, ontrain's loss and every gradient are compared with eager PyTorch's. *Largest error* is the error
of the worst gradient, relative to the gradient's norm. Some models normalise in single precision whatever precision
they are given, and differ by some 1e-7.

The *road* says what trains a model. **One graph**: the model is captured once, with a batch of one size, as
`ORTTrainer`, `ORTModule` and `ontrain check` capture it. The same graph is then compared at that size and at another
batch size and length; where the model fixes a size, the remark says why. **ORTModule**: forward branches on values, or
makes tensors whose sizes depend on values. `ORTModule` trains such a model with a graph for each path or with a graph
that is sized as it runs, and is compared at both sizes; `ORTTrainer` refuses it with the reason in the remark.

{trained} of {all} models train, {one_graph} of them as one graph. What is refused is refused before anything runs, with
the reason and a way out.

"""


def row_of(entry: Entry) -> tuple[str, str, str, str]:
    """Return what an entry's row must say whatever was measured: name, family, result and road."""
    return entry.name, entry.family, "trains", "ORTModule" if entry.refused else "one graph"


def rows(page: str) -> list[tuple[str, ...]]:
    """Return the first four columns of each row of a page's first table."""
    return [tuple(_cells(line)[:4]) for line in _lines(page).values()]


def _lines(page: str) -> dict[str, str]:
    """Return the rows of a page's first table by the model's name."""
    table = [line for line in page.partition(NEXT)[0].splitlines() if line.startswith("| ")]
    return {_cells(line)[0]: line for line in table[1:]}


def _cells(line: str) -> list[str]:
    return re.split(r" *\| *", line.strip("| "))


def _row(entry: Entry) -> str:
    """Judge a model by its road, and return its row."""
    verdict, remark, operators = judge(entry), f"fixed size: {entry.fixed}" if entry.fixed else "", ""
    if entry.refused:
        assert verdict.refusal is not None, f"{entry.name} is one graph, and its entry says that it is none"
        remark = f"ORTTrainer refuses it: {verdict.refusal.problem}"
        verdict = judge_module(entry)
    else:
        operators = f"{verdict.operators}"
    assert verdict.refusal is None, f"{entry.name} is refused: {verdict.refusal}"
    assert verdict.error <= TOLERANCE, f"{entry.name} differs by {verdict.error}"
    if entry.dtype is not torch.float64:
        remark += f"; judged in {str(entry.dtype).removeprefix('torch.')}"
    error = f"{verdict.error:.0e}" if verdict.error else "0"
    figures = [f"{verdict.parameters:,}", operators, error]
    return _line([*row_of(entry), *figures, remark])


def _line(cells: list[str]) -> str:
    return "| " + " | ".join([*cells[:-1], cells[-1].replace("|", r"\|")]).strip() + " |"


def write(lines: Iterable[str]) -> None:
    """Renew the first table, and leave what follows it."""
    import transformers

    head = INTRODUCTION.format(
        torch=torch.__version__.split("+")[0], transformers=transformers.__version__, all=len(ZOO),
        trained=sum(row_of(entry)[2] == "trains" for entry in ZOO),
        one_graph=sum(not entry.refused for entry in ZOO),
    )  # fmt: skip
    table = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS), *lines]
    _, mark, packages = PAGE.read_text().partition(NEXT)
    PAGE.write_text(head + "\n".join(table) + "\n" + mark + packages)


def main() -> None:
    """Judge models and write the page."""
    import transformers

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="models, as the table names them; all by default")
    names = parser.parse_args().names
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    lines = _lines(PAGE.read_text())
    for entry in ZOO:
        if not names or entry.name in names:
            lines[entry.name] = _row(entry)
            print(lines[entry.name], flush=True)
    write(lines[entry.name] for entry in ZOO)


if __name__ == "__main__":
    main()
