"""Help and wrong paths need nothing that takes seconds to import: here torch and its like cannot be imported at all."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import ontrain

COMMANDS = ("check", "bisect", "plan", "products", "compare", "env", "profile", "bench")
SLOW = ("torch", "onnx", "onnxruntime", "onnx_ir", "numpy", "sympy")


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory) -> Path:
    """A folder in which each slow package is a file that raises."""
    folder = tmp_path_factory.mktemp("poisoned")
    for package in SLOW:
        (folder / f"{package}.py").write_text(f"raise AssertionError('{package} was imported')\n")
    return folder


@pytest.fixture
def call(poisoned, tmp_path):
    def run(*args: str) -> tuple[int, str, str]:
        paths = [str(poisoned), *(path for path in sys.path if path)]
        done = subprocess.run(
            [sys.executable, "-m", "ontrain", *args], cwd=tmp_path, capture_output=True, text=True, timeout=120,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "100", "TERM": "dumb"}, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    return run


def options_of(text: str) -> dict[str, str]:
    """Flag and description of each option that a help text lists."""
    section = text.partition("\nOptions:\n")[2].partition("\n\n")[0]
    entries = re.split(r"^  (?=--)", section, flags=re.MULTILINE)[1:]
    return {entry.split()[0]: " ".join(entry.split()) for entry in entries}


def examples_of(text: str) -> list[list[str]]:
    """The words of each command below "Examples:", without variables before it."""
    section = text.partition("\n  Examples:\n")[2].partition("\n\n")[0]
    commands = [line for line in section.splitlines() if re.match(r" {4}\S", line)]
    return [[word for word in shlex.split(command) if not re.match(r"[A-Z_]+=", word)] for command in commands]


def test_the_slow_packages_cannot_be_imported_here(call, tmp_path):
    (tmp_path / "user.py").write_text("import torch\n")
    assert "was imported" in call("check", "user:make")[2]


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_stands_by_itself_without_torch(call, command):
    code, out, err = call(*filter(None, [command]), "--help")
    assert (code, err) == (0, "")
    assert out.splitlines()[2].startswith("  ") and out.splitlines()[2].endswith("."), "what it does, in a sentence"
    options = options_of(out)
    silent = [text for flag, text in options.items() if flag != "--help" and "[default: " not in text]
    assert options and not silent
    examples = examples_of(out)
    assert len(examples) == 3
    for program, name, *words in examples:
        assert program == "ontrain" and (name == command or (not command and name in COMMANDS))
        flags = {word for word in words if word.startswith("--")}
        assert flags <= set(options if command else options_of(call(name, "--help")[1]))


def test_the_command_alone_and_an_unknown_flag_answer_without_torch(call):
    assert "Commands:" in "".join(call()[1:])
    assert call("check", "--unknown")[0] == 2


def test_version_is_printed_without_torch(call):
    assert call("--version") == (0, f"ontrain {ontrain.__version__}\n", "")


WRONG = {
    "no file": (("check", "nothing.onnx"), "no model file 'nothing.onnx'"),
    "a folder": (("check", "package"), "it is a folder"),
    "no module": (("check", "nothing:make"), "no module 'nothing'"),
    "no module in a package": (("check", "package.nothing:make"), "no module 'package.nothing'"),
    "a size": (("check", "user:make", "--dim", "batch=many"), "--dim 'batch=many' gives no size"),
    "plan's module": (("plan", "package.nothing:make"), "no module 'package.nothing'"),
    "plan of a file": (("plan", "model.onnx"), "names no function"),
    "plan's sizes": (("plan", "user:make", "--batch-sizes", "two"), "--batch-sizes 'two'"),
    "bisect's module": (("bisect", "nothing:right"), "no module 'nothing'"),
    "profile's file": (("profile", "nothing.onnx"), "no model file 'nothing.onnx'"),
    "profile's page": (("profile", "run/model.onnx", "--page", "nowhere/x.html"), "there is no such folder"),
    "bench's size": (("bench", "run/model.onnx", "--dim", "batch"), "--dim 'batch' gives no size"),
    "first run": (("compare", "nothing", "run"), "no folder nothing"),
    "second run": (("compare", "run", "nothing"), "no folder nothing"),
    "no run in it": (("compare", "run", "package"), "package holds no run"),
    "tolerance": (("compare", "run", "run", "--atol=-1"), "--atol is -1.0"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_path_is_told_before_anything_slow_is_imported(call, tmp_path, name):
    (tmp_path / "run" / "step_0").mkdir(parents=True)
    (tmp_path / "run" / "model.onnx").touch()
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("import torch\n")
    (tmp_path / "user.py").write_text("import torch\n")
    args, said = WRONG[name]
    code, out, err = call(*args)
    assert (code, out) == (2, "") and err.startswith("error: ") and said in err
