"""A mutant: one plausible mistake in the sources, and the tests that shall notice it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["ROOT", "SOURCES", "Mutant", "mutant"]

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "ontrain"


@dataclass(frozen=True)
class Mutant:
    """A mistake that somebody could make.

    Attributes:
        file: below src/ontrain.
        old: source text that stands there exactly once.
        new: what the mistake makes of it.
        tests: files below tests/.
        keyword: which of their tests run, as pytest's -k; empty for all.
    """

    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    keyword: str = ""

    @property
    def room(self) -> str:
        return Path(self.file).parts[0]

    def applied(self, text: str) -> str:
        """Return the file's text with the mistake in it.

        Raises:
            LookupError: the source text is not there exactly once; names the file and the text.
        """
        count = text.count(self.old)
        if count != 1:
            raise LookupError(f"{self.file} has {count} times {self.old!r}: fit tests/mutants/table to the sources")
        return text.replace(self.old, self.new)

    def __str__(self) -> str:
        return f"{self.file}: {_line(self.old)}  →  {_line(self.new)}"


def mutant(file: str, old: str, new: str, tests: str, keyword: str = "") -> Mutant:
    """Return a mutant; `tests` are file names with blanks between them."""
    return Mutant(file, old, new, tuple(tests.split()), keyword)


def _line(text: str) -> str:
    return " ⏎ ".join(part.strip() for part in text.strip().splitlines()) or "nothing"
