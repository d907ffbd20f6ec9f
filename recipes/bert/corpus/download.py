"""The data sets' files: from the publisher, or from a mirror, folder or file of your own; checked by published hashes.

What is fetched from where is in sources.json: addresses and hashes that the publishers give.
"""

from __future__ import annotations

import json
import re
import shutil
import zipfile
from pathlib import Path
from typing import Any

from harness.fetch import BLOCK, Tick, compare, fetch, fetch_text, is_address
from harness.files import DataError, written

SOURCES: dict[str, Any] = json.loads((Path(__file__).parent / "sources.json").read_text())
"""By dataset: either `refused`, why it is not to be had, or `files`: url, path under download/, and one of sha256 (of
the file), sums (address of a list of hashes) or members (sha256 of files in a zip archive, which is unpacked)."""


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
    whole = source is None or source.endswith("/") or (not is_address(source) and Path(source).is_dir())
    if not whole and len(files) > 1:
        raise DataError(
            f"--source {source}: {dataset} has {len(files)} files; name a folder, or an address ending in /"
        )
    if expected and len(files) > 1:
        raise DataError(f"--expected_hash is for one file, and {dataset} has {len(files)}")
    said = []
    for file in files:
        target, address = folder / file["path"], file["url"] if source is None else source
        if source is not None and whole:
            address = f"{source.rstrip('/')}/{file['url'].rpartition('/')[2]}"
        if "members" in file and _unpacked(target, file["members"]):
            said.append(f"{target.with_suffix('')}: there, hashes match")
            continue
        wanted = expected or _published(file, address, source)
        there = target.is_file()
        if there:
            compare(target, wanted)
        else:
            fetch(address, target, wanted, tick)
        hashed = "hash matches" if wanted else "no hash published to compare"
        said.append(f"{target}: {'there' if there else 'fetched'}, {hashed}")
        if "members" in file:
            _unpack(target, file["members"])
            said[-1] = f"{target.with_suffix('')}: fetched and unpacked, hashes match"
    return said


def _published(file: dict[str, Any], address: str, source: str | None) -> str | None:
    """The publisher's hash of a file; lists of hashes lie beside the file, on a mirror too."""
    if "sha256" in file:
        return f"sha256:{file['sha256']}"
    if "sums" not in file or address == source:
        return None
    folder, _, name = address.rpartition("/")
    place = f"{folder}/{file['sums'].rpartition('/')[2]}"
    if is_address(place):
        way_out = "--source can name the file itself, and --expected_hash its hash"
        listed = fetch_text(place, "the list of hashes", way_out)
    else:
        listed = Path(place).read_text() if Path(place).is_file() else ""
    # "latest" lists the files under their dates.
    pattern = re.escape(name).replace(r"\-latest\-", r"-(?:latest|\d{8})-")
    listing = re.search(rf"^([0-9a-f]{{40}})\s+\*?{pattern}\s*$", listed, re.MULTILINE)
    return f"sha1:{listing[1]}" if listing else None


def _unpacked(archive: Path, members: dict[str, str]) -> bool:
    try:
        for name, value in members.items():
            compare(archive.with_suffix("") / name, f"sha256:{value}")
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
                    shutil.copyfileobj(file, out, BLOCK)
                compare(folder / name, f"sha256:{value}")
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise DataError(f"{archive} is no archive of {folder.name} ({error}): delete it and fetch it again") from None
