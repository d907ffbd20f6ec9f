"""The documents name files, modules and functions that are there."""

from __future__ import annotations

import importlib
import re
from functools import cache
from pathlib import Path

import pytest

from ontrain.functions import composites
from ontrain.graph import DOMAIN
from tests.documents import DOCUMENTS, ROOT
from tests.test_architecture import ROOMS
from tests.test_docs import prose_of

PAGES = [path for path in DOCUMENTS if path.parent == ROOT or path.is_relative_to(ROOT / "docs")]
"""The recipes' pages name upstream's scripts, too."""


@cache
def sources() -> frozenset[str]:
    folders = ("src", "tests", "recipes", "examples", "benchmarks", "azureml")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return frozenset(path.relative_to(ROOT).as_posix() for path in paths)


def words_of(path: Path) -> list[str]:
    """What a page has in the type of code, within its running text."""
    return re.findall(r"`([^`\n]+)`", prose_of(path))


def shown_by(path: Path) -> set[str]:
    """Files that the page itself shows, under a first line such as `# models.py`."""
    return set(re.findall(r"^# (\w+\.py)$", path.read_text(), re.MULTILINE))


@pytest.mark.parametrize("path", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_that_a_page_names_are_there(path):
    named = {name for words in words_of(path) for name in re.findall(r"[\w/.-]*\w\.py\b", words)}
    absent = {name for name in named - shown_by(path) if not any(f"/{file}".endswith(f"/{name}") for file in sources())}
    assert not absent


def is_there(name: str) -> bool:
    """Whether the longest importable beginning of a dotted name has the rest as attributes."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            member = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            if not hasattr(member, part):
                return False
            member = getattr(member, part)
        return True
    return False


def is_operator(name: str) -> bool:
    domain, _, operator = name.partition(".")
    return name.removeprefix(f"{DOMAIN}.") in composites


def is_logger(name: str) -> bool:
    return any(f'"{name}"' in (ROOT / file).read_text() for file in sources() if file.startswith("src/"))


@pytest.mark.parametrize("path", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_names_of_ontrain_that_a_page_gives_are_there(path):
    named = {match[0] for words in words_of(path) if (match := re.match(r"ontrain(\.[A-Za-z_]\w*)+(?![\w/-])", words))}
    absent = {name for name in named if not (is_there(name) or is_operator(name) or is_logger(name))}
    assert not absent


def test_names_that_the_page_on_the_architecture_gives_by_their_rooms_are_there():
    rooms = "|".join(ROOMS)
    words = words_of(ROOT / "docs" / "architecture.md")
    named = {word for word in words if re.fullmatch(rf"({rooms})(\.[A-Za-z_]\w*)+", word)}
    assert len(named) > 3 and not {name for name in named if not is_there(f"ontrain.{name}")}
    folders = {word for word in words if re.fullmatch(rf"({rooms})(/\w+)+/?", word)}
    source = ROOT / "src" / "ontrain"
    assert folders and not {
        folder for folder in folders if not ((source / folder).is_dir() or (source / f"{folder}.py").is_file())
    }


def test_names_that_are_nowhere_are_noticed():
    assert is_there("ontrain.training.ORTTrainer.train_step") and is_operator("ontrain.Attention")
    assert not is_there("ontrain.training.ORTTrainer.trainstep") and not is_there("ontrain.nothing")
    assert not is_operator("ontrain.Atention") and not is_logger("ontrain.fases")
