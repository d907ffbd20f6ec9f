"""What a command writes: its table of rows, and its part of a page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["read_rows", "renew", "write_rows"]


def read_rows(table: Path) -> dict[str, Any]:
    """Return the rows of a table by name; none where it is not written yet."""
    rows: dict[str, Any] = json.loads(table.read_text()) if table.exists() else {}
    return rows


def write_rows(table: Path, rows: Mapping[str, Any]) -> None:
    """Write the rows of a table."""
    table.write_text(json.dumps(rows, indent=1) + "\n")


def renew(page: Path, heading: str, section: str) -> None:
    """Put `section`, which begins with `heading`, in place of the page's part of that heading, or at its end."""
    before, _, rest = page.read_text().partition(f"{heading}\n")
    _, mark, after = rest.partition("\n## ")
    page.write_text(before.rstrip("\n") + "\n\n" + section + mark + after)
