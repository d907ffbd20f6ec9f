"""Numbers of bytes as people read them. Outside of the rooms: errors of every room name some."""

from __future__ import annotations

__all__ = ["byte_text"]


def byte_text(count: float) -> str:
    """Return a number of bytes in the largest unit that leaves a number of at least one."""
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
