"""Help and wrong folders do not wait for Azure's SDK: here it cannot be imported at all."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.documents import ROOT

FOLDER = ROOT / "azureml"


@pytest.fixture
def call(tmp_path):
    (tmp_path / "azure").mkdir()
    for file in ("azure/__init__.py", "yaml.py"):
        (tmp_path / file).write_text("raise AssertionError('imported')\n")

    def run(script: str, *args: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [sys.executable, str(FOLDER / script), *args], cwd=tmp_path, capture_output=True, text=True, check=False,
            env={**os.environ, "PYTHONPATH": str(tmp_path), "COLUMNS": "100", "TERM": "dumb"}, timeout=120,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.mark.parametrize("script", ["submit.py", "upload.py"])
def test_help_stands_by_itself_without_the_sdk(call, script):
    code, out, err = call(script, "--help")
    assert (code, err) == (0, "")
    options = re.split(r"^  (?=--)", out.partition("\nOptions:\n")[2].partition("\n\n")[0], flags=re.MULTILINE)[1:]
    assert [text for text in options if not re.search(r"\[default: |\[required\]|--help", " ".join(text.split()))] == []
    assert len(re.findall(rf"^    python azureml/{script} ", out, re.MULTILINE)) == 3


def test_a_wrong_folder_is_told_before_the_sdk_is_imported(call, tmp_path):
    code, _, err = call("upload.py", "squad", str(tmp_path / "nothing"), "--account", "mine")
    assert code == 2 and "there is no folder" in err
    assert "imported" in call("upload.py", "squad", str(FOLDER), "--account", "mine")[2]
