"""The table of mutants fits the sources, and its runner can tell what is noticed from what is not."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests.mutants.mutant import ROOT, SOURCES, Mutant, mutant
from tests.mutants.run import Outcome, Tree
from tests.mutants.table import MUTANTS
from tests.slices import sliced


@pytest.mark.parametrize("entry", MUTANTS, ids=[f"{m.file}-{i}" for i, m in enumerate(MUTANTS)])
def test_each_mutant_is_another_program_and_has_tests(entry: Mutant) -> None:
    text = (SOURCES / entry.file).read_text()
    changed = entry.applied(text)  # raises where a refactoring has moved the place
    assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(text))
    missing = [name for name in entry.tests if not (ROOT / "tests" / name).is_file()]
    assert entry.tests and not missing


def test_there_are_enough_in_every_room() -> None:
    assert len(MUTANTS) >= 150 and len(set(MUTANTS)) == len(MUTANTS)
    rooms = {folder.name for folder in SOURCES.iterdir() if folder.is_dir() and any(folder.rglob("*.py"))}
    assert {m.room for m in MUTANTS} == rooms - {"__pycache__"}
    assert min(Counter(m.room for m in MUTANTS).values()) >= 2


@pytest.mark.parametrize("text", ["return count", "nothing", "pass"])
def test_a_place_that_is_not_there_exactly_once_is_an_error(text: str) -> None:
    with pytest.raises(LookupError, match=r"x\.py has [02] times"):
        mutant("x.py", text, "new", "").applied("def f():\n    pass\n\n\ndef g():\n    pass\n")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    return Tree(tmp_path_factory.mktemp("tree"))


UNITS = "from ontrain.units import byte_text\n\n\ndef test_it() -> None:\n    assert {claim}\n"


@pytest.mark.parametrize(
    ("claim", "outcome"),
    [
        ("byte_text(2048).startswith('2')", Outcome.KILLED),
        ("byte_text(0)", Outcome.SURVIVED),
        ("__import__('time').sleep(600)", Outcome.TIMED_OUT),
    ],
)
def test_only_tests_that_fail_kill(tree: Tree, tmp_path: Path, claim: str, outcome: Outcome) -> None:
    test = tmp_path / "test_units.py"
    test.write_text(UNITS.format(claim=claim))
    wrong = mutant("units.py", "def byte_text(", "def byte_text(count): return '7'\n\n\ndef _other(", str(test))
    before = (SOURCES / "units.py").read_text()
    assert tree.judge(wrong, 2 if outcome is Outcome.TIMED_OUT else 300) is outcome, tree.output
    # Neither the working tree nor what the next mutant is applied to has changed.
    copied = (tree.folder / "src" / "ontrain" / "units.py").read_text()
    assert (SOURCES / "units.py").read_text() == copied == before


def test_a_selection_without_a_test_is_no_kill(tree: Tree) -> None:
    for tests, keyword in (("nowhere/test_nothing.py", ""), ("graph/test_graph.py", "no_such_test")):
        planted = mutant("units.py", "value /= 1024", "value /= 1000", tests, keyword)
        assert tree.judge(planted, 300) is Outcome.UNTESTED


def test_parts_are_the_whole_without_doubles() -> None:
    parts = [sliced(MUTANTS, f"{k}/4") for k in (1, 2, 3, 4)]
    assert Counter(m for part in parts for m in part) == Counter(MUTANTS)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    for wrong in ("0/4", "5/4", "1", "a/b", "1/0"):
        with pytest.raises(ValueError, match="is no part"):
            sliced(MUTANTS, wrong)
