"""Fetching: goes on where it stopped, checks what came against published hashes, takes a local file or a mirror.

What is fetched from where is in sources.json: addresses and hashes that the publishers give.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import re
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.files import NO_SPACE, DataError, reading, refuse_special, written

SOURCES: dict[str, Any] = json.loads((Path(__file__).parent / "sources.json").read_text())
"""By dataset: either `refused`, why it is not to be had, or `files`: url, path under download/, and one of sha256 (of
the file), sums (address of a list of hashes) or members (sha256 of files in a zip archive, which is unpacked)."""

_BLOCK = 1 << 20
_ATTEMPTS = 5
_PAUSE_S = 2.0
_TIMEOUT_S = 60
# Wikimedia turns away clients that do not say what they are.
_AGENT = "ontrain-bert-recipe/1.0 (Python urllib)"

Tick = Callable[[str], None]


def download(
    dataset: str, folder: Path, source: str | None = None, expected: str | None = None, tick: Tick = lambda said: None
) -> list[str]:
    """Bring a dataset to `folder`; what is there and whole is not fetched again.

    Args:
        dataset: a key of SOURCES, or "all" for all that can be fetched.
        folder: the workspace's download folder.
        source: in place of the published address: a folder or an address ending in / that has files of the same names,
            or, where the dataset is one file, a path or an address of that.
        expected: "sha256:…", "sha1:…" or "md5:…" of that file, in place of the published hash.
        tick: told how far it is.

    Returns:
        A line about each file.
    """
    if dataset == "all":
        if source or expected:
            raise DataError("--source and --expected_hash go with one dataset, not with all")
        names = [name for name, about in SOURCES.items() if "files" in about]
        return [line for name in names for line in download(name, folder, tick=tick)]
    about = SOURCES[dataset]
    if "refused" in about:
        raise DataError(f"{dataset} cannot be downloaded: {about['refused']}")
    files = about["files"]
    whole = source is None or source.endswith("/") or (not _is_address(source) and Path(source).is_dir())
    if not whole and len(files) > 1:
        raise DataError(
            f"--source {source}: {dataset} has {len(files)} files; name a folder, or an address ending in /"
        )
    if expected and len(files) > 1:
        raise DataError(f"--expected_hash is for one file, and {dataset} has {len(files)}")
    said = []
    for file in files:
        target = folder / file["path"]
        address = file["url"] if source is None else _within(source, file["url"]) if whole else source
        if "members" in file and _unpacked(target, file["members"]):
            said.append(f"{target.with_suffix('')}: there, hashes match")
            continue
        wanted = expected or _published(file, address, source)
        if target.is_file():
            _compare(target, wanted)
            said.append(f"{target}: there, " + ("hash matches" if wanted else "no hash published to compare"))
        else:
            fetch(address, target, wanted, tick)
            said.append(f"{target}: fetched, " + ("hash matches" if wanted else "no hash published to compare"))
        if "members" in file:
            _unpack(target, file["members"])
            said[-1] = f"{target.with_suffix('')}: fetched and unpacked, hashes match"
    return said


def fetch(address: str, target: Path, expected: str | None = None, tick: Tick = lambda said: None) -> None:
    """Bring a file, from http(s), file:// or a path; it appears under its name when it is whole and its hash right."""
    algorithm, _, value = (expected or "sha256:").partition(":")
    if algorithm not in ("sha256", "sha1", "md5") or (expected and not re.fullmatch(r"[0-9a-f]{32,64}", value.lower())):
        raise DataError(f"--expected_hash {expected}: write sha256:…, sha1:… or md5:…")
    target.parent.mkdir(parents=True, exist_ok=True)
    if not _is_address(address):
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
        except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as error:
            reason = getattr(error, "reason", error)
        if attempt == _ATTEMPTS:
            size = part.stat().st_size if part.exists() else 0
            raise DataError(
                f"{address}: {reason}, {_ATTEMPTS} times; {size:,} bytes are here: the same command goes on from there"
            )
        tick(f"{reason}; trying again")
        time.sleep(_PAUSE_S * attempt)
    try:
        _compare(part, expected)
    except DataError:
        part.unlink()
        raise
    finally:
        _about(part).unlink(missing_ok=True)
    os.replace(part, target)


def _is_address(text: str) -> bool:
    return text.startswith(("http://", "https://"))


def _within(source: str, url: str) -> str:
    name = url.rpartition("/")[2]
    return source.rstrip("/") + "/" + name if _is_address(source) else str(Path(source) / name)


def _about(part: Path) -> Path:
    return part.with_name(part.name + ".json")


def _receive(address: str, part: Path, tick: Tick) -> None:
    """Append what is missing of `part`; if the server's file is another by now, begin anew."""
    for file in (part, _about(part)):
        refuse_special(file)
    have = part.stat().st_size if part.exists() else 0
    known: dict[str, str] = {}
    if have:
        with contextlib.suppress(OSError, ValueError):
            known = json.loads(_about(part).read_text())
        if known.get("address") != address or not known.get("version"):
            have = 0
    headers = {"User-Agent": _AGENT, "Accept-Encoding": "identity"}
    if have:
        headers |= {"Range": f"bytes={have}-", "If-Range": known["version"]}
    try:
        answer = urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=_TIMEOUT_S)
    except urllib.error.HTTPError as error:
        if error.code == 416 and error.headers.get("Content-Range", "") == f"bytes */{have}":
            return  # all of it came before
        raise
    with answer:
        if answer.status != 206 or not answer.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            have = 0
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length and length.isdigit() else None
        # A weak tag promises nothing about bytes, so it may not resume.
        tag = answer.headers.get("ETag", "")
        version = tag if tag and not tag.startswith("W/") else answer.headers.get("Last-Modified", "")
        try:
            _about(part).write_text(json.dumps({"address": address, "version": version}))
            with part.open("ab" if have else "wb") as file:
                while block := answer.read(_BLOCK):
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
    _compare(path, expected)
    with path.open("rb") as file, written(target) as out:
        while block := file.read(_BLOCK):
            out.write(block)


def _compare(path: Path, expected: str | None) -> None:
    if not expected:
        return
    algorithm, _, value = expected.partition(":")
    with reading(path), path.open("rb") as file:
        found = hashlib.file_digest(file, algorithm).hexdigest()
    if found != value.lower():
        raise DataError(
            f"{path}: its {algorithm} is {found}, not {value.lower()}; it is damaged, or of another version"
        )


def _published(file: dict[str, Any], address: str, source: str | None) -> str | None:
    """The publisher's hash of a file; lists of hashes lie beside the file, on a mirror too."""
    if "sha256" in file:
        return f"sha256:{file['sha256']}"
    if "sums" not in file or (source is not None and address == source):
        return None
    place = address.rpartition("/")[0] + "/" + file["sums"].rpartition("/")[2]
    if not _is_address(place):
        listed = Path(place).read_text() if Path(place).is_file() else ""
    else:
        try:
            request = urllib.request.Request(place, headers={"User-Agent": _AGENT})
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
                listed = answer.read(_BLOCK).decode("utf-8", "replace")
        except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as error:
            raise DataError(
                f"{place}, the list of hashes, does not come: {getattr(error, 'reason', error)}; --source can name the "
                "file itself, and --expected_hash its hash"
            ) from None
    # "latest" lists the files under their dates.
    pattern = re.escape(address.rpartition("/")[2]).replace(r"\-latest\-", r"-(?:latest|\d{8})-")
    found = re.search(rf"^([0-9a-f]{{40}})\s+\*?{pattern}\s*$", listed, re.MULTILINE)
    return f"sha1:{found[1]}" if found else None


def _unpacked(archive: Path, members: dict[str, str]) -> bool:
    folder = archive.with_suffix("")
    try:
        for name, value in members.items():
            _compare(folder / name, f"sha256:{value}")
    except (OSError, DataError):
        return False
    return True


def _unpack(archive: Path, members: dict[str, str]) -> None:
    """Unpack the members known, and nothing else, to a folder of the archive's name."""
    folder = archive.with_suffix("")
    try:
        with zipfile.ZipFile(archive) as packed:
            for name, value in members.items():
                with packed.open(f"{folder.name}/{name}") as file, written(folder / name) as out:
                    while block := file.read(_BLOCK):
                        out.write(block)
                _compare(folder / name, f"sha256:{value}")
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise DataError(f"{archive} is no archive of {folder.name} ({error}): delete it and fetch it again") from None
