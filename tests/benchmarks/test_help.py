"""`--help` of every measurement: what it measures, and each flag with its default."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

from benchmarks.commands import Command
from tests.imports import slow_imports

FOLDER = Path(__file__).parents[2] / "benchmarks"
COMMANDS = sorted(path for path in FOLDER.glob("*.py") if "Command(__doc__)" in path.read_text())


def declared(path: Path) -> list[ast.Call]:
    """The flags that a file declares, but for those that are its own affair."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    flags = [call for call in calls if ast.unparse(call.func) == "parser.add_argument"]
    return [flag for flag in flags if "argparse.SUPPRESS" not in ast.unparse(flag)]


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: path.stem)
def test_a_measurement_says_what_each_flag_is(path):
    silent = [ast.unparse(flag.args[0]) for flag in declared(path) if "help" not in {k.arg for k in flag.keywords}]
    assert not silent
    manual = ast.get_docstring(ast.parse(path.read_text()), clean=False)
    assert re.search(rf"^    (\w+=\S+ )?python -m benchmarks\.{path.stem}\b", manual, re.MULTILINE)


def test_each_flag_has_its_default(capsys):
    parser = Command("Measure 10 %.\n\n    python -m measure")
    parser.add_argument("--rounds", type=int, default=5, help="turns, 10 % of them warm")
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--quick", action="store_true", help="few")
    parser.add_argument("--model", action="append", help="by default all")
    parser.add_argument("--file", required=True, help="what is read")
    with pytest.raises(SystemExit):
        parser.parse_args(["--help"])
    said = " ".join(capsys.readouterr().out.split())
    for text in (
        "Measure 10 %. python -m measure", "turns, 10 % of them warm [default: 5]", "[default: 2 4]",
        "few [default: off]", "by default all", "what is read [required]",
    ):  # fmt: skip
        assert text in said


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: path.stem)
def test_help_waits_for_nothing_slow(path):
    done, slow = slow_imports([sys.executable, "-m", f"benchmarks.{path.stem}", "--help"], FOLDER.parent)
    assert (done.returncode, done.stderr) == (0, "") and f"python -m benchmarks.{path.stem}" in done.stdout
    assert not slow


def test_slow_imports_are_seen(tmp_path):
    for program in ("import onnx", "import sys, subprocess; subprocess.run([sys.executable, '-c', 'import onnx'])"):
        assert "onnx" in slow_imports([sys.executable, "-c", program], tmp_path)[1]
