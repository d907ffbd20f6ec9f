"""What is written is on the disk; what is read is a file, and no larger than it may be.

Outside of the rooms: on-device training needs it where there is no torch.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

__all__ = ["open_file", "read_file", "sync"]


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


def open_file(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file for reading that a stranger may have put there.

    A FIFO would make whoever opens it wait for a writer, and a device such as /dev/zero has no end. So nothing but a
    regular file, links followed, is opened.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", os.fspath(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_file(path: str | os.PathLike[str], limit: int) -> bytes:
    """Return the content of a regular file of at most `limit` bytes; see `open_file`.

    Raises:
        OSError: it cannot be read, is no regular file, or is larger.
    """
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise OSError(errno.EFBIG, f"it has {size} bytes, at most {limit} are read", os.fspath(path))
        # What grows in the meantime is not followed; memory is taken for what is there, not for what may be.
        return file.read(size)
