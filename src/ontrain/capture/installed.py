"""Which files an installer put where they are."""

from __future__ import annotations

import csv
import functools
import os
import re
import sys
from pathlib import Path

__all__ = ["is_installed", "path_in_packages"]

_FOLDERS = re.compile(r".*[\\/](?:site|dist)-packages[\\/]", re.DOTALL)
"""Where Python and Debian keep installed packages."""


def is_installed(file: str) -> bool:
    """Whether a file is an installed package's."""
    return path_in_packages(file) is not None


@functools.cache
def path_in_packages(file: str) -> str | None:
    """Return where in its folder of packages a file is, "peft/tuners/lora/layer.py"; None for a file of no package.

    Such a folder is named `site-packages`, or `dist-packages` by Debian. It may also be any folder that is imported
    from, as of `pip install --target`: then a package's files are those that its record lists
    (https://packaging.python.org/specifications/recording-installed-packages), and what lies beside them is the user's.
    """
    if folder := _FOLDERS.match(file):
        return file[folder.end() :]
    path = Path(os.path.abspath(file))
    for entry in sys.path:
        parent = Path(os.path.abspath(entry))
        if path.is_relative_to(parent) and str(path) in _records(parent):
            return str(path.relative_to(parent))
    return None


def _records(folder: Path) -> frozenset[str]:
    try:
        return _recorded(folder, folder.stat().st_mtime_ns) if folder.is_dir() else frozenset()
    except OSError:  # of a process that may no longer read what it imported from
        return frozenset()


@functools.cache
def _recorded(folder: Path, changed: int) -> frozenset[str]:
    """The Python files that the records of a folder list, which was last changed at a time."""
    files: set[str] = set()
    for record in folder.glob("*.dist-info/RECORD"):
        with record.open(newline="", encoding="utf-8", errors="surrogateescape") as lines:
            names = (line[0] for line in csv.reader(lines) if line)
            files.update(os.path.normpath(os.path.join(folder, name)) for name in names if name.endswith(".py"))
    return frozenset(files)
