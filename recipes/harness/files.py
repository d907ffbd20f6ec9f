"""Files that are read with the reason where they cannot be, and written whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

NO_SPACE = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT}


class DataError(ValueError):
    """The data, an option or the disk is at fault; the message is one line for the user."""


def refuse_special(path: Path, called: str = "") -> None:
    """Raise a DataError if there is something at the path that is no regular file."""
    if path.exists() and not path.is_file():
        raise DataError(f"{called or path} is no regular file")


@contextmanager
def reading(path: Path, called: str = "") -> Iterator[None]:
    """Say as a DataError why a file cannot be read; `called` stands for its path.

    A FIFO would make the reader wait for a writer, and a device such as /dev/zero has no end.
    """
    refuse_special(path, called)
    try:
        yield
    except UnicodeDecodeError as error:
        raise DataError(f"{called or path} is not UTF-8 text: byte {error.start} cannot be decoded") from None
    except OSError as error:
        raise DataError(f"{called or path} cannot be read: {error.strerror}") from None


def read_text(path: Path, called: str = "", encoding: str = "utf-8") -> str:
    """Return a file's text, its line ends as they are."""
    with reading(path, called):
        return path.read_bytes().decode(encoding)


def read_json(path: Path, called: str = "") -> Any:
    """Return what a file of JSON holds; a DataError says why it cannot be read."""
    text = read_text(path, called)
    try:
        return json.loads(text)
    except ValueError as error:
        reason = str(error) if text.strip() else "it is empty"
        raise DataError(f"{called or path} is no JSON: {reason}; mend the file, or get it anew") from None


@contextmanager
def written(path: Path) -> Iterator[IO[bytes]]:
    """Open a file to write that appears under its name when it is complete, or never."""
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException as error:
        with suppress(OSError):
            part.unlink()
        if not isinstance(error, OSError):
            raise
        if error.errno in NO_SPACE:
            raise DataError(
                f"no space left to write {path} ({error.strerror}); what is finished stays: "
                "make room and give the same command again"
            ) from None
        raise DataError(f"{path} cannot be written: {error.strerror or error}") from None


def write_json(path: Path, value: Any) -> None:
    """Write JSON, whole or not at all."""
    with written(path) as file:
        file.write((json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode())


def writable(folder: Path, flag: str = "--output_dir") -> None:
    """Find out now whether results can be written, not after the training."""
    probe = folder / f".probe-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"\0")
        with suppress(FileNotFoundError):
            probe.unlink()
    except OSError as error:
        raise DataError(f"{flag} {folder} cannot be written: {error.strerror}; name a folder that can be") from None


def digest(*parts: bytes | str | int | float) -> str:
    """Name content by a hash; parts keep their borders."""
    h = hashlib.blake2b(digest_size=16)
    for part in parts:
        raw = part if isinstance(part, bytes) else str(part).encode()
        h.update(len(raw).to_bytes(8, "little"))
        h.update(raw)
    return h.hexdigest()
