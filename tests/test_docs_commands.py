"""The documents' commands run, and print what stands beside them.

A block whose lines begin with `$ ` shows commands and what they print: `…` stands for the rest of a line, on a line of
its own for any number of lines. Files that a document shows as Python (a block that begins with `# models.py`) are
there. Any other block of commands is run whole. In the line before a block,

    <!-- skip: reason -->     leaves it out (data, hours, a cluster). Its programs must be there, and know its flags.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents import DOCUMENTS, ROOT, Block, agrees, blocks_of

_SHELL = ("", "sh", "bash", "console")
_NAMED = re.compile(r"# (\w+\.py)\n")


def _commands(block: Block) -> list[tuple[str, str]]:
    """The commands of a block, each with what it is shown to print."""
    pairs: list[tuple[str, str]] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            pairs.append((line.removeprefix("$ "), ""))
        else:
            pairs[-1] = pairs[-1][0], f"{pairs[-1][1]}{line}\n"
    return pairs


def _is_session(block: Block) -> bool:
    return block.language in (*_SHELL, "text") and block.text.startswith("$ ")


def _is_script(block: Block) -> bool:
    return block.language in _SHELL and not _is_session(block) and block.mark != "printed"


BLOCKS = [block for path in DOCUMENTS for block in blocks_of(path)]


def _run(command: str, folder: Path) -> str:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=folder,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "COLUMNS": "200", "TERM": "dumb",
             "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.mark.sampled(3)
@pytest.mark.parametrize("block", [b for b in BLOCKS if _is_session(b)], ids=str)
def test_commands_print_what_is_shown(block, tmp_path):
    if block.mark == "skip":
        pytest.skip(block.reason)
    for other in blocks_of(block.path):
        if other.language == "python" and (name := _NAMED.match(other.text)):
            (tmp_path / name[1]).write_text(other.text)
    for command, shown in _commands(block):
        printed = _run(command, tmp_path)
        assert agrees(shown, printed), f"{block}: {command} prints\n{printed}"


@pytest.mark.parametrize("block", [b for b in BLOCKS if _is_script(b) and b.mark != "skip"], ids=str)
def test_scripts_run(block):
    _run(block.text, ROOT)


@pytest.mark.parametrize("block", [b for b in BLOCKS if _is_script(b) and b.mark == "skip"], ids=str)
def test_programs_left_out_are_there_and_know_their_flags(block):
    for words in _words(block.text):
        if words[0] in ("python", "bash") and words[1:] and words[1] != "-":
            script = next((f / words[1] for f in (ROOT, block.path.parent) if (f / words[1]).is_file()), None)
            assert script is not None, f"{block}: there is no {words[1]}"
            if words[0] == "python":
                flags = {word.partition("=")[0] for word in words[2:] if word.startswith("--")}
                unknown = {flag for flag in flags if not re.search(rf"{flag}\b", _help_of(script))}
                assert not unknown, f"{block}: {words[1]} has no {unknown}"
            else:
                subprocess.run(["bash", "-n", str(script)], check=True)
        elif "/" in words[0]:
            assert (ROOT / words[0]).is_file(), f"{block}: there is no {words[0]}"


def _words(text: str) -> list[list[str]]:
    """The words of each command of a script, without settings of variables before them and comments behind."""
    text = re.sub(r"<<'(\w+)'.*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL).replace("\\\n", " ")
    commands = [shlex.split(line, comments=True) for line in text.splitlines()]
    while any(words and re.match(r"\w+=", words[0]) for words in commands):
        commands = [words[1:] if words and re.match(r"\w+=", words[0]) else words for words in commands]
    return [words for words in commands if words]


@functools.cache
def _help_of(script: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(script), "--help"], capture_output=True, text=True, check=False, timeout=120,
        env={**os.environ, "COLUMNS": "200", "TERM": "dumb"},
    )  # fmt: skip
    assert done.returncode == 0, f"{script} --help:\n{done.stderr[-2000:]}"
    return done.stdout


def test_elisions_stand_for_anything_and_nothing_else_does():
    assert agrees("a\n…\nb …\n", "a\n1\n2\nb 3\n") and agrees("…\na\n", "a\n")
    assert not agrees("a\n…\nb\n", "a\n1\nc\n") and not agrees("a 1\n", "a 2\n") and not agrees("a\n", "a\nb\n")
