"""The pages show the newest rows of the results, as they are."""

from __future__ import annotations

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
