"""What a session of onnxruntime's own providers imports: what onnxruntime does, so that it begins as quickly."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.dropin.models import write

PROGRAM = """
import sys
import numpy as np
import ontrain as ort

session = ort.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
feeds = {value.name: np.ones([2 if isinstance(size, str) else size for size in value.shape], np.float32)
         for value in session.get_inputs()}
session.run(None, feeds)
print(*sorted({"onnx", "onnx_ir", "sympy", "torch"} & set(sys.modules)))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize(("name", "brings"), [("scaled", []), ("outside", ["onnx"])])
def test_a_session_of_onnxruntimes_own(name, brings, folder):
    path = str(folder / f"{name}.onnx")
    run = subprocess.run([sys.executable, "-c", PROGRAM, path], capture_output=True, text=True, check=True)
    assert run.stdout.split() == brings
