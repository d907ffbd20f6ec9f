"""What is written is on the disk. Outside of the rooms: on-device training needs it where there is no torch."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["sync"]


def sync(path: Path) -> None:
    """Have the system write a file, or a folder's entries, to the disk now.

    Raises:
        OSError: it cannot.
    """
    if os.name == "nt" and path.is_dir():
        return  # Windows opens no folders
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
