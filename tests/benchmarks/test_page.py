"""The pages show the newest rows of the results, as they are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from benchmarks import page
from benchmarks.figures import RESULTS, rows


@pytest.mark.parametrize("name", page.PAGES)
def test_pages_show_the_newest_rows(name):
    assert (page.PROJECT / name).read_text() == page.written(name), "run python -m benchmarks.page"


def test_each_row_says_how_to_make_it():
    for path in RESULTS.glob("*.jsonl"):
        for row in rows(path.stem):
            assert "python -m benchmarks." in row["command"], f"{path.name}: {row['date']}"
            assert {"python", "versions", "hardware"} <= row.keys()
            assert not re.search(r"^[A-Z_]+=/", row["command"]), "a folder of the machine that measured"


_UNIT = r"ns|µs|ms|s|GFLOP/s|GFLOP|GB/s|%|[KMG]iB|times|faults|×(?! ?\d)"
_FIGURE = re.compile(rf"(?<![\w.])(\d+(?:[.,]\d+)*)(?:[\u2013-]\d[\d.,]*)? ?({_UNIT})(?![\w/])")
_DESIGN = {"0.1 ms", "2 MiB", "4 MiB", "8 MiB", "31 MiB"}
"""What the sources say: slices of time, pages, tiles, the largest scores kept whole, what is freed at first."""


def _numbers(value: object) -> Iterator[float]:
    if isinstance(value, dict | list):
        for entry in value.values() if isinstance(value, dict) else value:
            yield from _numbers(entry)
    elif isinstance(value, int | float):
        yield float(value)


def _measured(table: str) -> list[float]:
    return [number for line in (RESULTS / f"{table}.jsonl").open() for number in _numbers(json.loads(line))]


def test_a_figure_of_the_notes_is_in_a_row_of_the_command_beside_it():
    notes = (page.PROJECT / "docs/performance.md").read_text().partition("<!-- end of figures -->")[2]
    assert "## What paid" in notes
    for paragraph in re.split(r"\n\n|\n(?=- )", notes):
        text = " ".join(paragraph.split())
        for number, unit in _FIGURE.findall(text):
            if f"{number} {unit}" in _DESIGN:
                continue
            digits = len(number.partition(".")[2])
            tables = re.findall(r"`python -m benchmarks\.(\w+)", text)
            rows = [value for table in tables for value in _measured(table)]
            figure = float(number.replace(",", ""))
            assert any(round(value, digits) == figure for value in rows), f"no row has {number} {unit}: {text}"
