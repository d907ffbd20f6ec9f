"""The folder of a cache: entries written beside and renamed, each with a hash, the oldest thrown away."""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from ontrain.disk import read_file

__all__ = ["Folder"]

_logger = logging.getLogger("ontrain.capture.cache")
_MAGIC = b"ontrain capture 1\n"
_SUFFIX, _HALF = ".capture", ".part"
_STALE = 24 * 3600.0


class Folder:
    """Entries under keys, several to a key.

    An entry that is torn, altered, or another user's is passed over; one that cannot be read or written is as if it
    were not there: a cache is no reason for a training run to end.

    Args:
        path: made when the first entry is written, for this user alone.
        limit: bytes that all entries take at most.
    """

    def __init__(self, path: Path, limit: int) -> None:
        self.path, self._limit = path, limit

    def entries(self, key: str) -> Iterator[tuple[Path, bytes]]:
        """Yield the sound entries of a key, the last used first."""
        for file in sorted(self.path.glob(f"{key}.*{_SUFFIX}"), key=_time, reverse=True):
            try:
                data = _sound(file, self._limit)
            except OSError as error:
                _logger.debug("%s cannot be read: %s", file, error)
                continue
            if data is None:
                _logger.debug("%s is torn, altered or another user's, and is ignored", file)
            else:
                yield file, data

    def write(self, key: str, name: str, data: bytes) -> None:
        """Write an entry; it is there as a whole or not at all."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, half = tempfile.mkstemp(suffix=_HALF, dir=self.path)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(_MAGIC + hashlib.sha256(data).digest() + data)
                os.replace(half, self.path / f"{key}.{name}{_SUFFIX}")
            except BaseException:
                Path(half).unlink(missing_ok=True)
                raise
            self._shrink()
        except OSError as error:
            _logger.debug("nothing can be written to %s: %s", self.path, error)

    def used(self, file: Path) -> None:
        """Remember that an entry was used just now."""
        try:
            os.utime(file)
        except OSError as error:
            _logger.debug("%s cannot be marked as used: %s", file, error)

    def _shrink(self) -> None:
        """Throw away what is left of writers that died, and the entries unused for longest above the limit."""
        for half in self.path.glob(f"*{_HALF}"):
            if time.time() - _time(half) > _STALE:
                half.unlink(missing_ok=True)
        files = sorted(self.path.glob(f"*{_SUFFIX}"), key=_time, reverse=True)
        total = 0
        for file in files:
            try:
                total += file.stat().st_size
            except OSError:
                continue
            if total > self._limit:
                file.unlink(missing_ok=True)


def _time(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def _sound(file: Path, limit: int) -> bytes | None:
    """The content of an entry; None if it is not what was written, or not by this user."""
    if hasattr(os, "getuid") and file.stat().st_uid != os.getuid():
        return None
    data = read_file(file, limit)
    start = len(_MAGIC) + 32
    if not data.startswith(_MAGIC) or hashlib.sha256(data[start:]).digest() != data[len(_MAGIC) : start]:
        return None
    return data[start:]
