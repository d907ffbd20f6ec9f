"""How a matrix is transposed: strip after strip, so that what is read stays in the nearest cache and threads share it.

ATen transposes a whole matrix on one thread, and takes memory for it. Strips are as narrow as one cache line of the
target; narrower ones would write lines twice, and of wider ones the source's rows push one another out of the cache
where they lie a multiple of 4 KiB apart.
"""

from __future__ import annotations

__all__ = ["strips"]

_LINE = 64
"""Bytes of a cache line."""
_SHARED = 1 << 15
"""Elements from which on ATen shares a call out to two threads."""


def strips(rows: int, columns: int, itemsize: int) -> list[tuple[int, int]]:
    """Cut the rows of a matrix whose columns are copied to the rows of another; return starts and sizes.

    Args:
        rows, columns: of the source, which lies row after row.
        itemsize: bytes of an element.
    """
    line = max(1, _LINE // itemsize)
    step = line * -(-_SHARED // (line * max(1, columns)))
    return [(start, min(step, rows - start)) for start in range(0, rows, step)]
