"""The version is the same wherever it is told: in the package, in what cites it, in the changelog and in tags."""

from __future__ import annotations

import re
import subprocess
import tomllib

import pytest

import ontrain
from tests.documents import ROOT

CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
HEADINGS = re.findall(r"^## (.+)$", CHANGELOG, re.MULTILINE)


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def releases() -> list[str]:
    """Versions with a heading of their own, in the changelog's order."""
    dated = [re.fullmatch(r"\[(\d+\.\d+\.\d+)\] - \d{4}-\d\d-\d\d", heading) for heading in HEADINGS[1:]]
    assert all(dated), "a release's heading is: ## [1.2.3] - 2027-01-31"
    return [match[1] for match in dated if match]


def test_the_package_takes_its_version_from_the_module():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" not in project["project"] and project["project"]["dynamic"] == ["version"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "ontrain.__version__"}
    assert len(numbers(ontrain.__version__)) == 3


def test_a_citation_names_this_version():
    citation = (ROOT / "CITATION.cff").read_text()
    keys = set(re.findall(r"^([a-z-]+):", citation, re.MULTILINE))
    assert {"cff-version", "message", "title", "authors"} <= keys, "the format requires them"
    assert re.search(r"^version: (.+)$", citation, re.MULTILINE)[1] == ontrain.__version__


def test_the_changelog_begins_with_what_is_not_released_and_goes_back_in_time():
    assert HEADINGS[0] == "[Unreleased]"
    assert releases() == sorted(releases(), key=numbers, reverse=True)
    assert all(numbers(version) <= numbers(ontrain.__version__) for version in releases())
    kinds = set(re.findall(r"^### (.+)$", CHANGELOG, re.MULTILINE))
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_each_tag_is_a_release_and_a_tagged_commit_has_its_version():
    if not (ROOT / ".git").exists():
        pytest.skip("no clone: there are no tags")

    def tags(*args: str) -> list[str]:
        command = ["git", "-C", str(ROOT), "tag", "--list", "v[0-9]*", *args]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()

    assert {tag.removeprefix("v") for tag in tags()} <= set(releases())
    assert all(tag == f"v{ontrain.__version__}" for tag in tags("--points-at", "HEAD"))
