"""The documents tell the truth: their Python runs, their links lead somewhere, their commands exist.

Each ```python block runs alone in an empty folder. In the line before a block,

    <!-- continues -->        runs it after the block before it,
    <!-- skip: reason -->     leaves it out (a GPU, data, hours).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("recipes/**/*.md"))]
DOCUMENTS += [ROOT / "docker" / "README.md", ROOT / "azureml" / "README.md"]
DOCUMENTS = [path for path in DOCUMENTS if "node_modules" not in path.parts]
FENCE = re.compile(r"^ {0,3}```(\w*)\s*$")
MARK = re.compile(r"<!-- (continues|skip: (.+)) -->")


@dataclass
class Block:
    path: Path
    line: int
    language: str
    text: str
    mark: str = ""
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}"


def blocks_of(path: Path) -> list[Block]:
    found: list[Block] = []
    lines = path.read_text().splitlines()
    inside: Block | None = None
    for number, line in enumerate(lines, 1):
        fence = FENCE.match(line)
        if inside is not None and fence:
            inside = None
        elif inside is not None:
            inside.text += line + "\n"
        elif fence:
            mark = next((MARK.fullmatch(x.strip()) for x in reversed(lines[: number - 1]) if x.strip()), None)
            # Blank lines put the code at its own line of the document, so that a traceback points there.
            inside = Block(path, number, fence[1], "")
            if mark:
                inside.mark, inside.reason = mark[1].split(":")[0], mark[2] or ""
            found.append(inside)
    return found


def script_of(block: Block) -> str:
    """The block's code at its own lines, after the code of the blocks that it continues."""
    chain = [block]
    if block.mark == "continues":
        before = [b for b in blocks_of(block.path) if b.language == "python" and b.line < block.line]
        while chain[0].mark == "continues":
            chain.insert(0, before.pop())
    script = ""
    for one in chain:
        script += "\n" * (one.line - script.count("\n")) + one.text
    return script


PYTHON = [b for path in DOCUMENTS for b in blocks_of(path) if b.language == "python"]


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_example_runs(block, tmp_path):
    if block.mark == "skip":
        pytest.skip(block.reason)
    # In a file: capture shows the lines of the user's model, and these must be somewhere.
    script = tmp_path / f"{block.path.stem}.py"
    script.write_text(script_of(block))
    (tmp_path / "run").mkdir()
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path / "run",
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{block} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


def prose_of(path: Path) -> str:
    """The document without its code blocks."""
    kept, inside = [], False
    for line in path.read_text().splitlines():
        if FENCE.match(line):
            inside = not inside
        elif not inside:
            kept.append(line)
    return "\n".join(kept)


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
