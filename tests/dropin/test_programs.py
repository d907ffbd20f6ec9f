"""Programs written for onnxruntime run as they are where every import of it finds ontrain, and compute the same."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

from tests.documents import ROOT
from tests.dropin.programs import PROGRAMS


def computed(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tests.dropin.programs", *arguments], capture_output=True, text=True, cwd=ROOT,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("computed "))
    return line


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_computes_the_same(name):
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    assert computed(name, "ontrain") == computed(name)
