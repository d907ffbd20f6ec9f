"""Renew a part of a page that a command writes."""

from __future__ import annotations

from pathlib import Path

__all__ = ["renew"]


def renew(page: Path, heading: str, section: str) -> None:
    """Put `section`, which begins with `heading`, in place of the page's part of that heading, or at its end."""
    before, _, rest = page.read_text().partition(f"{heading}\n")
    _, mark, after = rest.partition("\n## ")
    page.write_text(before.rstrip("\n") + "\n\n" + section + mark + after)
