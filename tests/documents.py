"""What stands in the documents' blocks of code, for the tests that run it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["DOCUMENTS", "FENCE", "ROOT", "Block", "agrees", "blocks_of"]

ROOT = Path(__file__).parent.parent
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("recipes/**/*.md"))]
DOCUMENTS += [ROOT / "docker" / "README.md", ROOT / "azureml" / "README.md"]
DOCUMENTS = [path for path in DOCUMENTS if "node_modules" not in path.parts]
FENCE = re.compile(r"^ {0,3}```(\w*)\s*$")
_MARK = re.compile(r"<!-- (continues|printed|skip: .+|needs: .+) -->")
ELISION = "…"


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
    blocks: list[Block] = []
    lines = path.read_text().splitlines()
    inside: Block | None = None
    for number, line in enumerate(lines, 1):
        fence = FENCE.match(line)
        if inside is not None and fence:
            inside = None
        elif inside is not None:
            inside.text += line + "\n"
        elif fence:
            mark = next((_MARK.fullmatch(x.strip()) for x in reversed(lines[: number - 1]) if x.strip()), None)
            inside = Block(path, number, fence[1], "")
            if mark:
                inside.mark, _, inside.reason = mark[1].partition(": ")
            blocks.append(inside)
    return blocks


def agrees(shown: str, printed: str) -> bool:
    """Whether a document shows what a program printed: `…` stands for the rest of a line, alone for any lines."""
    pattern = ""
    for line in shown.rstrip().splitlines():
        if line.strip() == ELISION:
            pattern += r"(?:.*\n)*?"
        else:
            pattern += re.escape(line.rstrip()).replace(re.escape(ELISION), ".*") + r"[ ]*\n"
    return re.fullmatch(pattern, printed.rstrip() + "\n") is not None
