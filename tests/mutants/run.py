"""Applies a mutant to a copy of the sources and lets the tests that belong to it run against the copy."""

from __future__ import annotations

import compileall
import contextlib
import enum
import os
import py_compile
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.mutants.mutant import ROOT, SOURCES, Mutant

__all__ = ["Outcome", "Tree"]

_NO_TESTS = (4, 5)
"""pytest's exit codes where a file is missing, and where no test has been chosen."""


class Outcome(enum.Enum):
    """What became of a mutant."""

    KILLED = "killed"
    SURVIVED = "SURVIVED"
    TIMED_OUT = "TIMED OUT"
    UNTESTED = "NO TESTS"
    """The table's selection fits no test."""


class Tree:
    """A copy of the sources that mutants are applied to, one after the other; the working tree stays as it is.

    Args:
        folder: empty; for the copy and what the tests leave behind.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.output = ""
        """What the last tests printed."""
        sources = folder / "src" / "ontrain"
        shutil.copytree(SOURCES, sources, ignore=shutil.ignore_patterns("__pycache__"))
        # Compiled once. A file is changed and changed back within a second: its time would not tell, its hash does.
        compileall.compile_dir(sources, quiet=1, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)

    def judge(self, mutant: Mutant, limit: float) -> Outcome:
        """Return whether the mutant's tests notice it within `limit` seconds."""
        with self._applied(mutant):
            return self._outcome(mutant, limit)

    def unmutated(self, mutant: Mutant, limit: float) -> Outcome:
        """Return the outcome of the mutant's tests on the sources as they are: they should survive."""
        return self._outcome(mutant, limit)

    @contextlib.contextmanager
    def _applied(self, mutant: Mutant) -> Iterator[None]:
        path = self.folder / "src" / "ontrain" / mutant.file
        text = path.read_text()
        path.write_text(mutant.applied(text))
        try:
            yield
        finally:
            path.write_text(text)

    def _outcome(self, mutant: Mutant, limit: float) -> Outcome:
        cache = self.folder / "cache"
        shutil.rmtree(cache, ignore_errors=True)
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header"]
        command += [str(ROOT / "tests" / name) for name in mutant.tests]
        if not any(Path(name).is_absolute() for name in mutant.tests):  # tests of elsewhere do not know the option
            command.append("--all-cases")
        command += ["-k", mutant.keyword] if mutant.keyword else []
        variables = {
            **os.environ,
            "PYTHONPATH": str(self.folder / "src"),
            "ONTRAIN_CACHE_DIR": str(cache),
            "OMP_NUM_THREADS": "1",
            "CI": "true",
        }
        process = subprocess.Popen(
            command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip
        try:
            self.output, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            # The tests may have started processes of their own.
            os.killpg(process.pid, signal.SIGKILL)
            self.output, _ = process.communicate()
            return Outcome.TIMED_OUT
        if process.returncode in _NO_TESTS:
            return Outcome.UNTESTED
        return Outcome.KILLED if process.returncode else Outcome.SURVIVED
