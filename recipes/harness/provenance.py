"""How a result came about: the command that made it, the versions of what computed it, the command that goes on."""

from __future__ import annotations

import platform
import shlex
import sys
from collections.abc import Sequence
from importlib.metadata import version

import ontrain


def command_line(words: Sequence[str] | None = None, *, resume: str = "") -> str:
    """Return the command that started this script, for a shell.

    Args:
        words: the script and its flags; by default those of this process.
        resume: a flag that the command ends with unless it holds it: that which goes on with the run.
    """
    words = sys.argv if words is None else words
    return shlex.join(["python", *words, *([resume] if resume and resume not in words else [])])


def versions(*packages: str) -> dict[str, str]:
    """Return the versions of Python, ontrain, torch and further packages."""
    others = {name: version(name) for name in ("torch", *packages)}
    return {"python": platform.python_version(), "ontrain": ontrain.__version__, **others}
