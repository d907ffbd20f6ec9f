"""The documents tell the truth: their Python runs, their links lead somewhere, their commands exist.

Each ```python block runs alone in an empty folder. In the line before a block,

    <!-- continues -->        runs it after the block before it,
    <!-- skip: reason -->     leaves it out (a GPU, data, hours),
    <!-- needs: package -->   leaves it and what continues it out where a package for development is not installed.

A block of text under the mark <!-- printed --> is what the Python before it prints; `…` stands for the rest of a line,
on a line of its own for any number of lines. Commands are run by `test_docs_commands`.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.documents import DOCUMENTS, FENCE, ROOT, Block, agrees, blocks_of
from tests.processes import run_file

SEPARATOR = "--- the next block ---"


def programs_of(path: Path) -> list[list[Block]]:
    """The Python of a document: each program is a block and those that continue it."""
    programs: list[list[Block]] = []
    for block in blocks_of(path):
        if block.language == "python" and block.mark == "continues":
            programs[-1].append(block)
        elif block.language == "python":
            programs.append([block])
    return programs


def script_of(program: list[Block]) -> str:
    """A program, each line where it stands in the document, so that a traceback points there."""
    script = ""
    for block in program:
        script += "\n" * (block.line - 1 - script.count("\n"))
        script += f"print({SEPARATOR!r})\n" if block is not program[0] else "\n"
        script += block.text
    return script


PROGRAMS = [program for path in DOCUMENTS for program in programs_of(path)]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: str(program[0]))
def test_example_runs(program, tmp_path):
    first = program[0]
    if first.mark == "skip":
        pytest.skip(first.reason)
    if first.mark == "needs":
        pytest.importorskip(first.reason)
    # In a file: capture shows the lines of the user's model, and these must be somewhere.
    script = tmp_path / f"{first.path.stem}.py"
    script.write_text(script_of(program))
    (tmp_path / "run").mkdir()
    done = run_file(script, tmp_path / "run", timeout=300, HF_HUB_OFFLINE="1")
    assert done.returncode == 0, f"{first} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    for block, printed in zip(program, done.stdout.split(SEPARATOR + "\n"), strict=True):
        behind = next((b for b in blocks_of(block.path) if b.line > block.line), None)
        if behind is not None and behind.mark == "printed":
            assert agrees(behind.text, printed), f"{block} prints\n{printed}"


def prose_of(path: Path) -> str:
    """The document without its code blocks."""
    prose, inside = [], False
    for line in path.read_text().splitlines():
        if FENCE.match(line):
            inside = not inside
        elif not inside:
            prose.append(line)
    return "\n".join(prose)


def anchors_of(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", prose_of(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose_of(path)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors_of(file)):
            broken.append(target)
    assert not broken


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_make_targets_exist(path):
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    code = "\n".join(
        [*(b.text for b in blocks_of(path) if b.language != "python"), *re.findall(r"`([^`\n]+)`", prose_of(path))]
    )
    assert set(re.findall(r"^(?:\$ )?make ([a-z][a-z-]*)", code, re.MULTILINE)) <= targets


def test_readme_opens_with_train_and_test():
    first = next(iter(blocks_of(ROOT / "README.md")))
    assert first.text.split("\n") == ["make train", "make test", ""]
