"""Which parts a commit's CI runs, what is written about them, and how a part ends."""

from __future__ import annotations

import datetime
import math
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from tests.slices import beginning_elsewhere
from tests.thorough import __main__ as thorough
from tests.thorough.page import NOT_YET, Row, read_rows, render, versions
from tests.thorough.parts import DAYS, PARTS, Part, parts_of
from tests.thorough.rotation import turn_and_day, turn_and_day_of_history

DATES = st.dates(datetime.date(2024, 1, 1), datetime.date(2030, 1, 1))


@given(st.sets(DATES), st.lists(st.integers(1, 40), min_size=DAYS, max_size=DAYS), st.integers(1, 4))
def test_seven_days_with_landings_run_every_part_whatever_lies_between_them(before, gaps, landings):
    history = [str(date) for date in before]
    day = max(before, default=datetime.date(2024, 1, 1))
    seen = set()
    for gap in gaps:
        day += datetime.timedelta(gap)
        for _ in range(landings):  # of one day, all of the same parts
            history.append(str(day))
            seen.add(turn_and_day(history)[1])
    assert seen == set(range(DAYS))
    assert {part for day in seen for part in parts_of(day)} == set(PARTS)


def test_every_day_has_parts_and_every_part_a_day():
    assert all(parts_of(day) for day in range(DAYS)) and all(part.day in range(DAYS) for part in PARTS)
    assert len({part.name for part in PARTS}) == len(PARTS)
    # All slices of a kind are among them.
    for kind in {part.name.rpartition(" ")[0] for part in PARTS if "/" in part.name}:
        shares = [part.name.rpartition(" ")[2].split("/") for part in PARTS if part.name.rpartition(" ")[0] == kind]
        assert [int(k) for k, _ in shares] == list(range(1, len(shares) + 1)) and {n for _, n in shares} == {
            str(len(shares))
        }


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(("count", "finished", "turns"), [(700, 0.5, 4), (700, 0.25, 8), (700, 0.1, 20), (3, 0.4, 5)])
def test_what_the_clock_cuts_off_has_its_turn(workers, count, finished, turns):
    seen = set()
    for turn in range(turns):
        order = beginning_elsewhere(range(count), turn)
        assert sorted(order) == list(range(count))
        share = -(-count // workers)  # each worker begins at the front of its own
        for first in range(0, count, share):
            seen.update(order[first : first + share][: math.ceil(finished * share)])
    assert seen == set(range(count))


def test_each_turn_of_a_day_begins_with_another_part_and_test(monkeypatch):
    asked = []
    monkeypatch.setattr(thorough, "_passes", lambda part, turn, end, write: asked.append((part, turn)) or True)
    for turn in range(8):
        monkeypatch.setattr(thorough, "turn_and_day_of_history", lambda root, turn=turn: (turn, 1))
        assert thorough.main(["--today"]) == 0
    parts = parts_of(1)
    rounds = [asked[at : at + len(parts)] for at in range(0, len(asked), len(parts))]
    assert all({part for part, _ in each} == set(parts) for each in rounds)
    assert {each[0][0] for each in rounds} == set(parts)
    sliced = [part for part in parts if "--slice" in part.command]
    assert sliced and all(part.argv(3)[-2:] == ["--turn", "3"] for part in sliced)


def git(folder: Path, *arguments: str, date: str = "2026-01-01") -> None:
    who = {f"GIT_{role}_{what}": "a@b" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    when = {"GIT_AUTHOR_DATE": f"{date}T12:00:00Z", "GIT_COMMITTER_DATE": f"{date}T12:00:00Z"}
    subprocess.run(["git", "-C", str(folder), *arguments], check=True, env={**os.environ, **who, **when})


def test_the_day_is_read_off_the_history(tmp_path):
    origin, today = tmp_path / "origin", datetime.date(2026, 3, 1)
    origin.mkdir()
    git(origin, "init", "-q")
    for number, date in enumerate(["2026-01-05", "2026-01-05", "2026-01-09", "2026-02-02"]):
        git(origin, "commit", "-q", "--allow-empty", "-m", str(number), date=date)
    assert turn_and_day_of_history(origin, today) == (0, 3)
    clone, shallow, plain = tmp_path / "clone", tmp_path / "shallow", tmp_path / "plain"
    git(tmp_path, "clone", "-q", f"file://{origin}", str(clone))
    assert turn_and_day_of_history(clone, today) == (0, 3)
    # Without a whole history the calendar has to do.
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{origin}", str(shallow))
    plain.mkdir()
    (clone / "inside").mkdir()
    for folder in (shallow, plain, clone / "inside"):
        days = {turn_and_day_of_history(folder, today + datetime.timedelta(n))[1] for n in range(DAYS)}
        assert days == set(range(DAYS))


def test_the_page_keeps_rows_and_says_what_was_not_run(tmp_path):
    page = tmp_path / "thorough.md"
    first, second = PARTS[0].name, PARTS[-1].name
    rows = {
        first: Row("2026-01-05", "30 of 40 | killed", "Python 3.11"),
        second: Row("2026-01-06", "left out: no", "x"),
    }
    page.write_text(render(rows))
    assert page.read_text().count(NOT_YET) == len(PARTS) - 2
    again = {**read_rows(page), first: Row("2026-02-01", "40 of 40", "Python 3.12")}
    page.write_text(render(again))
    assert set(read_rows(page)) == {first, second}
    assert read_rows(page)[second] == rows[second] and read_rows(page)[first].date == "2026-02-01"
    assert "30 of 40" not in page.read_text()


def test_the_published_page_is_one_that_the_run_writes():
    text = thorough.PAGE.read_text()
    assert text == render(read_rows(thorough.PAGE)), "renew it by `make thorough ARGS=--write`"


@pytest.mark.parametrize(
    ("code", "minutes", "passes", "result"),
    [
        ("print('7 killed of 7')", 1.0, True, "7 killed of 7"),
        ("print('1 failed'); raise SystemExit(1)", None, False, "**failed**: 1 failed"),
        ("import time; print('begun', flush=True); time.sleep(600)", 0.05, True, "**not finished**"),
    ],
)
def test_a_part_ends_with_its_last_line(tmp_path, monkeypatch, code, minutes, passes, result):
    part = Part(PARTS[0].name, 0, ("python", "-c", code))
    monkeypatch.setattr(thorough, "PARTS", [part])
    monkeypatch.setattr(thorough, "PAGE", tmp_path / "thorough.md")
    arguments = ["--part", part.name, "--write"] + (["--minutes", str(minutes)] if minutes else [])
    assert thorough.main(arguments) == (not passes)
    assert read_rows(tmp_path / "thorough.md")[part.name].result.startswith(result)


def test_the_versions_are_those_of_the_python_that_ran(tmp_path, monkeypatch):
    own = ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "onnx", "onnxruntime"))
    assert versions() == f"Python {platform.python_version()}, {own}"
    part = Part(PARTS[0].name, 0, ("python", "-c", "print('done')"), python="3.11")
    interpreter = tmp_path / part.interpreter()
    interpreter.parent.mkdir(parents=True)
    interpreter.write_text("#!/bin/sh\necho another one\n")
    interpreter.chmod(0o755)
    monkeypatch.setattr(thorough, "ROOT", tmp_path)
    monkeypatch.setattr(thorough, "PAGE", tmp_path / "thorough.md")
    for there, said in ((True, "another one"), (False, "an interpreter that is not there")):
        if not there:
            interpreter.unlink()
        thorough._note(part, "done", write=True)
        assert read_rows(tmp_path / "thorough.md")[part.name].versions == said


def test_what_cannot_run_here_is_left_out_with_a_reason(tmp_path, monkeypatch):
    part = Part(PARTS[0].name, 0, ("false",), module="tests.no_such_module")
    monkeypatch.setattr(thorough, "PARTS", [part])
    monkeypatch.setattr(thorough, "PAGE", tmp_path / "thorough.md")
    assert thorough.main(["--write"]) == 0
    assert read_rows(tmp_path / "thorough.md")[part.name].result == "left out: there is no tests.no_such_module"


def test_slices_of_tests_are_the_whole_without_doubles():
    def collected(*arguments: str) -> list[str]:
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "tests/optim/test_spec.py", *arguments]
        done = subprocess.run(command, cwd=thorough.ROOT, check=True, capture_output=True, text=True)
        return [line for line in done.stdout.splitlines() if "::" in line]

    parts = [collected("--slice", f"{k}/2") for k in (1, 2)]
    assert sorted(parts[0] + parts[1]) == sorted(collected()) and all(parts)
