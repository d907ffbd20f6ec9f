"""docs/thorough.md: what of the thorough run was run when, and what came out. Only the run itself writes it."""

from __future__ import annotations

import datetime
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.thorough.parts import PARTS

__all__ = ["NOT_YET", "Row", "read_rows", "render", "versions"]

NOT_YET = "not run yet"
_HEAD = """# The thorough run

Some checks take too long for each commit: near duplicates of tests, the rest of torch's operators, mistakes put into a
copy of the sources that the tests have to notice, damaged files, random programs beside an oracle, other Pythons.
`make thorough` runs all of them, `make thorough ARGS='--part "mutants 1/7"'` runs one part, and
`make thorough ARGS=--list` lists the parts.

The parts are dealt out to seven days. With each commit CI runs the parts of one day, for eight minutes at most, and for
less where all else took long. Only days with commits count: after seven of them every part had its turn, however many
days without commits lie between. A branch that brings commits of several days moves on by as many days.
What the clock cuts off comes in a later round: each round of seven days begins with another of a day's parts, and a
part of tests with another test.

`make thorough ARGS=--write` writes the table. A part has a result in it once the part has run.

| part | day | command | date | result | with |
|---|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Row:
    """What came of a part."""

    date: str
    result: str
    versions: str


_ASK = """
import platform
from importlib import metadata
packages = ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "onnx", "onnxruntime"))
print(f"Python {platform.python_version()}, {packages}")
"""


def versions(interpreter: str | Path = sys.executable) -> str:
    """Return what a result depends on, as the interpreter says it that has run the part."""
    try:
        asked = subprocess.run([interpreter, "-I", "-c", _ASK], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return "an interpreter that is not there"
    return asked.stdout.strip()


def today() -> str:
    return datetime.date.today().isoformat()


def read_rows(page: Path) -> dict[str, Row]:
    """Return the rows of a page by part."""
    rows = {}
    for line in page.read_text().splitlines() if page.is_file() else ():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == 6 and cells[0] in {part.name for part in PARTS} and cells[4] != NOT_YET:
            rows[cells[0]] = Row(cells[3], cells[4], cells[5])
    return rows


def render(rows: Mapping[str, Row]) -> str:
    """Return the page; a part without a row was not run yet."""
    lines = []
    for part in PARTS:
        row = rows.get(part.name, Row("–", NOT_YET, "–"))
        result = row.result.replace("\\|", "|").replace("|", "\\|")
        lines.append(f"| {part.name} | {part.day} | `{part.text()}` | {row.date} | {result} | {row.versions} |")
    return _HEAD + "\n".join(lines) + "\n"
