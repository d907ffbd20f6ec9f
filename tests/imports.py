"""Which of the packages that take long to import a command imports before it ends."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

__all__ = ["slow_imports"]

SLOW = {"onnx", "onnx_ir", "onnxruntime", "sympy", "torch", "transformers"}
_MARK = "import time:"


def slow_imports(
    command: Sequence[str | Path], folder: Path, **environment: str
) -> tuple[subprocess.CompletedProcess[str], set[str]]:
    """Run a command in a folder, and see what it and the Pythons that it starts import.

    Returns the finished process, whose errors are without Python's lines about imports, and the packages.
    """
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=folder,
        env={**os.environ, "PYTHONPROFILEIMPORTTIME": "1", **environment},
    )  # fmt: skip
    lines = done.stderr.splitlines(keepends=True)
    modules = [line.rpartition("|")[2].strip() for line in lines if line.startswith(_MARK)]
    done.stderr = "".join(line for line in lines if not line.startswith(_MARK))
    return done, {package for package in (module.partition(".")[0] for module in modules) if package in SLOW}
