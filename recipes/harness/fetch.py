"""Files from the network or a path: fetched from where it stopped, checked by hashes, there when they are whole."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import re
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from email.message import Message
from pathlib import Path

from harness.files import NO_SPACE, DataError, reading, refuse_special, written

BLOCK = 1 << 20
_ATTEMPTS = 5
_PAUSE_S = 2.0
_TIMEOUT_S = 60
# Wikimedia turns away clients that do not say what they are.
_HEADERS = {"User-Agent": "ontrain-bert-recipe/1.0 (Python urllib)", "Accept-Encoding": "identity"}
_NETWORK = (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError)

Tick = Callable[[str], None]
"""Told how far the work is."""


def is_address(text: str) -> bool:
    """Whether it is no path."""
    return text.startswith(("http://", "https://"))


def fetch(address: str, target: Path, expected: str | None = None, tick: Tick = lambda said: None) -> None:
    """Bring a file, from http(s), file:// or a path; it appears under its name when it is whole and its hash right.

    `expected` is "sha256:…", "sha1:…" or "md5:…".
    """
    algorithm, _, value = (expected or "sha256:").partition(":")
    if algorithm not in ("sha256", "sha1", "md5") or (expected and not re.fullmatch(r"[0-9a-f]{32,64}", value.lower())):
        raise DataError(f"--expected_hash {expected}: write sha256:…, sha1:… or md5:…")
    target.parent.mkdir(parents=True, exist_ok=True)
    if not is_address(address):
        path = Path(urllib.request.url2pathname(address.removeprefix("file://")) if "file://" in address else address)
        _copy(path, target, expected)
        return
    part = target.with_name(target.name + ".part")
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            _receive(address, part, tick)
            break
        except urllib.error.HTTPError as error:
            if error.code < 500 and error.code != 429:
                raise DataError(f"{address}: the server answers {error.code} {error.reason}") from None
            reason: object = error
        except _NETWORK as error:
            reason = getattr(error, "reason", error)
        if attempt == _ATTEMPTS:
            size = part.stat().st_size if part.exists() else 0
            raise DataError(
                f"{address}: {reason}, {_ATTEMPTS} times; {size:,} bytes are here: the same command goes on from there"
            )
        tick(f"{reason}; trying again")
        time.sleep(_PAUSE_S * attempt)
    try:
        compare(part, expected)
    except DataError:
        part.unlink()
        raise
    finally:
        _about(part).unlink(missing_ok=True)
    os.replace(part, target)


def fetch_text(address: str, what: str, way_out: str) -> str:
    """Return a short text; an error calls it `what` and ends with the way out."""
    request = urllib.request.Request(address, headers=_HEADERS)
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            return str(answer.read(BLOCK).decode("utf-8", "replace"))
    except _NETWORK as error:
        reason = getattr(error, "reason", error)
        raise DataError(f"{address}, {what}, does not come: {reason}; {way_out}") from None


def compare(path: Path, expected: str | None) -> None:
    """Refuse a file whose hash is not the one expected, if one is."""
    if not expected:
        return
    algorithm, _, value = expected.partition(":")
    with reading(path), path.open("rb") as file:
        actual = hashlib.file_digest(file, algorithm).hexdigest()
    if actual != value.lower():
        raise DataError(
            f"{path}: its {algorithm} is {actual}, not {value.lower()}; it is damaged, or of another version"
        )


def _about(part: Path) -> Path:
    return part.with_name(part.name + ".json")


def _begun(address: str, part: Path) -> tuple[int, str]:
    """How many bytes of the address's file are here, and of which version of it."""
    have = part.stat().st_size if part.exists() else 0
    known: dict[str, str] = {}
    if have:
        with contextlib.suppress(OSError, ValueError):
            known = json.loads(_about(part).read_text())
    version = known.get("version", "") if known.get("address") == address else ""
    return (have, version) if version else (0, "")


def _note(address: str, part: Path, headers: Message) -> None:
    """Write down which version of a file is being fetched: its tag, or its date, as weak tags promise no bytes."""
    tag = headers.get("ETag", "")
    version = tag if tag and not tag.startswith("W/") else headers.get("Last-Modified", "")
    _about(part).write_text(json.dumps({"address": address, "version": version}))


def _receive(address: str, part: Path, tick: Tick) -> None:
    """Append what is missing of `part`; if the server's file is another by now, begin anew."""
    for file in (part, _about(part)):
        refuse_special(file)
    have, version = _begun(address, part)
    resumed = {"Range": f"bytes={have}-", "If-Range": version} if have else {}
    try:
        request = urllib.request.Request(address, headers=_HEADERS | resumed)
        answer = urllib.request.urlopen(request, timeout=_TIMEOUT_S)
    except urllib.error.HTTPError as error:
        if error.code == 416 and error.headers.get("Content-Range", "") == f"bytes */{have}":
            return  # all of it came before
        raise
    with answer:
        if answer.status != 206 or not answer.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            have = 0
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length and length.isdigit() else None
        try:
            _note(address, part, answer.headers)
            with part.open("ab" if have else "wb") as file:
                while block := answer.read(BLOCK):
                    file.write(block)
                    have += len(block)
                    tick(f"{have / 2**20:,.0f} MiB" + (f" of {total / 2**20:,.0f}" if total else ""))
        except OSError as error:
            if error.errno in NO_SPACE:
                raise DataError(
                    f"no space left to write {part} ({error.strerror}); make room: the same command goes on from there"
                ) from None
            raise
    if total is not None and have < total:
        raise ConnectionError(f"the connection ended {total - have:,} bytes early")


def _copy(path: Path, target: Path, expected: str | None) -> None:
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    compare(path, expected)
    with path.open("rb") as file, written(target) as out:
        shutil.copyfileobj(file, out, BLOCK)
