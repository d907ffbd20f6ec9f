"""The parts of the thorough run, and on which of seven days each comes."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["DAYS", "PARTS", "Part", "find_python", "parts_of"]

DAYS = 7


@dataclass(frozen=True)
class Part:
    """A command that takes some minutes on two cores.

    Attributes:
        name: what it is called on the command line and in the table.
        day: from 0 to 6.
        command: with `python` for this interpreter.
        module: what has to be there for it, if it is a module.
        python: the version of Python that it makes an environment of, "3.12".
    """

    name: str
    day: int
    command: tuple[str, ...]
    module: str = ""
    python: str = ""

    def missing(self) -> str | None:
        """Return why it cannot run here."""
        if self.module and importlib.util.find_spec(self.module) is None:
            return f"there is no {self.module}"
        if self.python and find_python(self.python) is None:
            return f"there is no Python {self.python}"
        return None

    def argv(self, turn: int = 0) -> list[str]:
        """Return the command with the interpreters that are found here; a slice of tests begins elsewhere each turn."""
        replacements = {
            "python": sys.executable,
            "PYTHON=": f"PYTHON={find_python(self.python)}" if self.python else "",
        }
        further = ["--turn", str(turn)] if turn and "--slice" in self.command else []
        return [*(replacements.get(word, word) for word in self.command), *further]

    def interpreter(self) -> str:
        """Return the Python that runs the tests: this one, or that of the environment which the command makes."""
        return f".venvs/python{self.python}/bin/python" if self.python else sys.executable

    def text(self) -> str:
        """Return the command as one types it."""
        words = [f"PYTHON=python{self.python}" if word == "PYTHON=" else word for word in self.command]
        return " ".join(f"'{word}'" if " " in word else word for word in words)


def _pytest(*arguments: str) -> tuple[str, ...]:
    return ("python", "-m", "pytest", "-n", "auto", "--dist", "worksteal", "-q", "--thorough", *arguments)


def _other(version: str) -> tuple[str, ...]:
    tests = "tests/graph tests/functions tests/optim tests/session tests/inference tests/capi tests/test_tiny.py"
    return ("make", "--no-print-directory", "test", f"VENV=.venvs/python{version}", "PYTHON=", f"ARGS=-q {tests}")


def _operators(k: int) -> Part:
    return Part(
        f"operators {k}/4", k - 1, _pytest("-m", "thorough", "--slice", f"{k}/4", "tests/capture/test_op_db.py")
    )


def _duplicates(k: int) -> Part:
    return Part(
        f"near duplicates {k}/7", k - 1,
        _pytest("-m", "thorough", "--slice", f"{k}/7", "--ignore", "tests/capture/test_op_db.py"),
    )  # fmt: skip


def _fuzz(k: int, day: int) -> Part:
    command = ("python", "-m", "tests.fuzz", "--count", "1000", "--from", str(1000 * (k - 1)))
    return Part(f"hostile files {k}/3", day, command, module="tests.fuzz")


def _drawn(kind: str, day: int, count: int) -> Part:
    command = ("python", "-m", "tests.drawn", "--kind", kind, "--count", str(count), "--workers", "2")
    return Part(f"drawn {kind}", day, command, module="tests.drawn")


_CONFORMANCE = (
    "python", "-m", "tests.conformance", "--provider", "TorchExecutionProvider", "--provider", "CPUExecutionProvider",
)  # fmt: skip

PARTS: list[Part] = [
    *(_duplicates(k) for k in range(1, 8)),
    *(Part(f"mutants {k}/7", k - 1, ("python", "-m", "tests.mutants", "--part", f"{k}/7")) for k in range(1, 8)),
    *(_operators(k) for k in range(1, 5)),
    _fuzz(1, 1),
    _fuzz(2, 3),
    _fuzz(3, 5),
    _drawn("calls", 0, 400),
    _drawn("networks", 1, 150),
    _drawn("modules", 5, 250),
    _drawn("precisions", 3, 200),
    _drawn("trainers", 2, 100),
    _drawn("nodes", 3, 3000),
    _drawn("graphs", 4, 500),
    _drawn("gradients", 6, 500),
    Part("onnx's suite, by a list of providers", 2, _CONFORMANCE),
    Part("onnx's suite, in rows", 4, (*_CONFORMANCE[:5], "--rows")),
    Part("Python 3.12", 5, _other("3.12"), python="3.12"),
    Part("Python 3.13", 6, _other("3.13"), python="3.13"),
]
"""All of them, in the order of the table."""


def parts_of(day: int) -> Sequence[Part]:
    """Return the parts of one of the seven days."""
    return [part for part in PARTS if part.day == day]


def find_python(version: str) -> str | None:
    """Return an interpreter of this version that can make environments: from the path, or from pyenv's folder."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for place in (shutil.which(f"python{version}"), *map(str, pyenv.glob(f"versions/{version}.*/bin/python{version}"))):
        if place is None:
            continue
        tried = subprocess.run([place, "-c", "import ensurepip, venv"], check=False, capture_output=True)
        if tried.returncode == 0:
            return place
    return None
