"""Files that are loaded and have something under a name.

A program that uses transformers has thousands of them, and each capture asks: no object is made for a file without.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["files_with"]

_NOTHING: dict[str, Any] = {}


def files_with(name: str) -> list[tuple[Any, Any]]:
    """Return the loaded files that have something under a name, each with what it has."""
    files = [file for file in [*sys.modules.values()] if name in getattr(file, "__dict__", _NOTHING)]
    return [(file, vars(file).get(name)) for file in files]
