"""The manifest of a checkpoint: which files belong to it, how long they are, their hashes, and its own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ontrain.disk import open_file, read_file
from ontrain.errors import CheckpointError

__all__ = ["FORMAT", "MANIFEST", "MOST_TEXT", "DamagedCheckpointError", "check_files", "manifest_of"]

FORMAT = 2
"""Version of the layout, kept in the manifest."""
MANIFEST = "manifest.json"
MOST_TEXT = 256 << 20
"""Bytes of a JSON file of a checkpoint: a thousandth of the tensors of the largest run."""
_KNOWN = {"bytes", "sha256"}


class DamagedCheckpointError(CheckpointError):
    """A file of a checkpoint is missing, torn or altered: an older checkpoint may do."""


def manifest_of(files: Iterable[Path]) -> str:
    """Return the manifest's text for files that are written already."""
    listed = {path.name: {"bytes": path.stat().st_size, "sha256": _digest(path)} for path in files}
    return _text({"format": FORMAT, "files": listed})


def check_files(folder: Path) -> list[Path]:
    """Return the files of a checkpoint after comparing each with the manifest, and that with its own hash.

    Raises:
        DamagedCheckpointError: one is missing, torn or altered; names it.
        CheckpointError: it has another layout.
    """
    checked = []
    for name, said in _listed(folder).items():
        path = folder / Path(name).name
        if not path.is_file():
            raise DamagedCheckpointError(f"the checkpoint {folder} lacks the file {name!r}", reason="it is torn")
        size = path.stat().st_size
        if size != said["bytes"]:
            raise DamagedCheckpointError(
                f"{path} has {size} bytes, the manifest says {said['bytes']}", reason="it is torn or was altered"
            )
        try:
            digest = _digest(path)
        except OSError as error:
            raise DamagedCheckpointError(f"{path} cannot be read", reason=str(error)) from error
        if digest != said["sha256"]:
            raise DamagedCheckpointError(f"{path} does not have the hash in the manifest", reason="it was altered")
        checked.append(path)
    return checked


def _text(content: dict[str, Any]) -> str:
    body = json.dumps(content, indent=1, sort_keys=True)
    return json.dumps({**content, "sha256": hashlib.sha256(body.encode()).hexdigest()}, indent=1, sort_keys=True)


def _listed(folder: Path) -> dict[str, dict[str, Any]]:
    path = folder / MANIFEST
    try:
        text = read_file(path, MOST_TEXT).decode()
        content = json.loads(text)
    except FileNotFoundError as error:
        raise DamagedCheckpointError(f"there is no checkpoint at {folder}", reason=f"{MANIFEST} is missing") from error
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedCheckpointError(f"{path} cannot be read", reason=str(error)) from error
    if not isinstance(content, dict) or _text({k: v for k, v in content.items() if k != "sha256"}) != text:
        raise DamagedCheckpointError(f"{path} does not have its own hash", reason="it is torn or was altered")
    if content.get("format") != FORMAT:
        raise CheckpointError(
            f"{path} has layout {content.get('format')!r}, this version reads {FORMAT}",
            way_out="load it with the version of ontrain that wrote it",
        )
    files = content.get("files")
    if not isinstance(files, dict) or not all(
        isinstance(said, dict) and set(said) >= _KNOWN for said in files.values()
    ):
        raise CheckpointError(f"{path} lists no files", way_out="give a folder that save_checkpoint wrote")
    return files


def _digest(path: Path) -> str:
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]  # BinaryIO hides readinto
