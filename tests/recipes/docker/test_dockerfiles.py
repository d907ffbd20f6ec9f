"""The Dockerfiles against linters that share nothing with them, and against the tree that they copy."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FILES = [ROOT / "docker" / "Dockerfile.cpu", ROOT / "docker" / "Dockerfile.cuda", ROOT / "azureml" / "Dockerfile"]


def linter(name: str) -> str:
    """A program of the environment that runs the tests."""
    program = shutil.which(name, path=str(Path(sys.executable).parent))
    assert program, f"{name} is not beside {sys.executable}; make test installs it"
    return program


def lint(*command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=60, check=False)


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_hadolint_finds_nothing():
    done = lint(linter("hadolint"), *FILES)
    assert done.returncode == 0, done.stdout


def test_hadolint_would_find_what_matters(tmp_path):
    """The oracle of the test above is awake: an unpinned base, an unpinned package, root at the end."""
    bad = tmp_path / "Dockerfile"
    bad.write_text(
        "FROM python\nRUN apt-get update && apt-get install -y openmpi-bin\nRUN pip install torch\nUSER root\n"
    )
    report = lint(linter("hadolint"), bad).stdout
    assert {"DL3006", "DL3008", "DL3013", "DL3002"} <= set(re.findall(r"DL\d{4}", report))


def test_shellcheck_finds_nothing():
    done = lint(linter("shellcheck"), *sorted((ROOT / "docker").glob("*.sh")))
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", FILES[:2], ids=named)
def test_image_ends_as_a_user_without_rights(path):
    users = re.findall(r"^USER (\S+)", path.read_text(), re.MULTILINE)
    assert users == ["10001"]


def test_build_stages_are_the_same_in_all():
    """The three differ in what they are for, never in how ontrain is installed."""

    def stage(path: Path) -> str:
        text = path.read_text()
        return re.sub(r"(?<=ARG TORCH_INDEX=)\S+", "", text[text.index("ARG PYTHON_IMAGE") : text.rindex("\nFROM ")])

    assert len({stage(path) for path in FILES}) == 1


@pytest.mark.parametrize("path", FILES, ids=named)
def test_base_is_pinned_by_tag_and_digest(path):
    assert re.search(r"^ARG PYTHON_IMAGE=python:3\.\d+\.\d+-slim-bookworm@sha256:[0-9a-f]{64}$", path.read_text(), re.M)


@pytest.mark.parametrize("path", FILES, ids=named)
def test_what_is_copied_is_there_and_in_the_context(path):
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for words in re.findall(r"^COPY (?!--from)(.+)$", path.read_text(), re.MULTILINE):
        for source in words.split()[:-1]:
            assert (ROOT / source).exists()
            assert f"!{source.removeprefix('./')}" in ignored
