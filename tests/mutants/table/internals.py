"""Mistakes in src/ontrain/internals."""

from __future__ import annotations

from tests.mutants.mutant import mutant

BROKEN = ("test_internals.py", "broken")

MUTANTS = [
    mutant("internals/access.py", "if _release() <= TESTED:", "if True:", *BROKEN),
    mutant("internals/access.py", 'return Finding(row, "changed", raised[0]) if raised else', "return", *BROKEN),
    mutant("internals/row.py", '("gone", "changed", "of another release")', '("gone", "of another release")', *BROKEN),
    mutant("internals/canary.py", "if not holds:", "if False:", *BROKEN),
]
