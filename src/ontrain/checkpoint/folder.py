"""A checkpoint is a folder: tensors as safetensors, the rest as JSON, hashes over all; no pickle anywhere."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from ontrain.errors import CheckpointError

__all__ = ["FORMAT", "read_checkpoint", "write_checkpoint"]

FORMAT = 1
"""Version of the layout, kept in the manifest."""
_MANIFEST, _META = "manifest.json", "state.json"


def write_checkpoint(
    folder: str | os.PathLike[str], tensors: Mapping[str, Mapping[str, torch.Tensor]], meta: Mapping[str, Any]
) -> None:
    """Write a checkpoint beside its final place and rename it there; the one before stays until then.

    Args:
        folder: where it shall be.
        tensors: for each file (without suffix) its tensors by name.
        meta: anything JSON can hold.

    Raises:
        CheckpointError: the folder cannot be written, or `meta` holds what JSON cannot.
    """
    target = Path(folder)
    partial, before = target.with_name(f".{target.name}.partial"), target.with_name(f".{target.name}.before")
    try:
        text = json.dumps(dict(meta), indent=1, sort_keys=True)
    except TypeError as error:
        raise CheckpointError("the user's part of a checkpoint must be plain JSON", reason=str(error)) from error
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        for name, group in tensors.items():
            plain = {key: tensor.detach().cpu().contiguous().clone() for key, tensor in group.items()}
            save_file(plain, partial / f"{name}.safetensors")
        (partial / _META).write_text(text)
        files = {path.name: _digest(path) for path in sorted(partial.iterdir())}
        (partial / _MANIFEST).write_text(json.dumps({"format": FORMAT, "sha256": files}, indent=1))
        for path in partial.iterdir():
            _sync(path)
        if target.exists():
            shutil.rmtree(before, ignore_errors=True)
            os.replace(target, before)
        os.replace(partial, target)
    except OSError as error:
        raise CheckpointError(
            f"cannot write the checkpoint {os.fspath(folder)!r}", reason=str(error), way_out="choose a writable folder"
        ) from error
    shutil.rmtree(before, ignore_errors=True)


def read_checkpoint(folder: str | os.PathLike[str]) -> tuple[dict[str, dict[str, torch.Tensor]], dict[str, Any]]:
    """Return the tensors by file and the JSON part of a checkpoint, after checking every file's hash.

    Where a run died between the two renames of a write, the checkpoint before is read.

    Raises:
        CheckpointError: there is none, it is torn or altered (the file is named), or it has a newer layout.
    """
    target = Path(folder)
    before = target.with_name(f".{target.name}.before")
    if not target.exists() and before.exists():
        target = before
    manifest = _json(target / _MANIFEST)
    if manifest.get("format") != FORMAT or not isinstance(manifest.get("sha256"), dict):
        raise CheckpointError(
            f"{target / _MANIFEST} has layout {manifest.get('format')!r}, this version reads {FORMAT}",
            way_out="load it with the version of ontrain that wrote it",
        )
    for name, digest in manifest["sha256"].items():
        path = target / Path(name).name
        if not path.is_file():
            raise CheckpointError(f"the checkpoint {target} lacks the file {name!r}", reason="it is torn")
        if _digest(path) != digest:
            raise CheckpointError(f"{path} does not have the hash in the manifest", reason="it is torn or was altered")
    names = [Path(n).name for n in manifest["sha256"] if n.endswith(".safetensors")]
    tensors = {n.removesuffix(".safetensors"): load_file(target / n) for n in names}
    return tensors, _json(target / _META)


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise CheckpointError(f"there is no checkpoint at {path.parent}", reason=f"{path.name} is missing") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read", reason=str(error)) from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} holds no JSON object")
    return found


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
