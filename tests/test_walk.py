"""The walk in docs/architecture.md: each function that it names is there, and leads on as it says."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text()
WALK = PAGE[PAGE.index("## A walk through the house") : PAGE.index("## One model through all rooms")]
STOPS = re.findall(r"^\| `([\w/]+\.py)` `([\w.]+)` \|[^|]*\| `([^`]+)` \|$", WALK, re.MULTILINE)


def source_of(file: str, name: str) -> str:
    """The text of a function, as ast writes it."""
    body: list[ast.stmt] = ast.parse((ROOT / "src" / "ontrain" / file).read_text()).body
    *outer, last = name.split(".")
    for part in outer:
        (body,) = [node.body for node in body if isinstance(node, ast.ClassDef) and node.name == part]
    return "\n".join(ast.unparse(node) for node in body if isinstance(node, ast.FunctionDef) and node.name == last)


@pytest.mark.parametrize(("file", "name", "leads_on"), STOPS)
def test_each_stop_of_the_walk_leads_on_as_the_page_says(file, name, leads_on):
    assert leads_on in source_of(file, name)


def test_every_line_of_the_walk_is_a_stop():
    lines = [line for line in WALK.splitlines() if line.startswith("| `")]
    assert len(lines) == len(STOPS) > 30


@pytest.mark.parametrize("file", sorted(set(re.findall(r"`([a-z_]+(?:/[a-z_]+)+\.py)`", PAGE))))
def test_files_that_the_page_names_are_there(file):
    assert [*(ROOT / "src").rglob(file), *(ROOT / "tests").rglob(Path(file).name)]
