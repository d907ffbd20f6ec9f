"""A checkpoint is a folder: tensors as safetensors, the rest as JSON, hashes over all; no pickle anywhere.

It is written beside its place, synced to the disk, and renamed: whoever dies at whatever moment leaves the old one or
the new one, never a mixture. The one before may be kept, as `{folder}~1`, and the one before that as `{folder}~2`.
Files are written by whom they belong to, one process or many, between `begin_checkpoint` and `commit_checkpoint`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from ontrain.checkpoint.manifest import MANIFEST, MOST_TEXT, DamagedCheckpointError, check_files, manifest_of
from ontrain.disk import read_file, sync
from ontrain.errors import CheckpointError, OntrainError, OptionError

__all__ = [
    "begin_checkpoint",
    "commit_checkpoint",
    "has_checkpoint",
    "read_checkpoint",
    "write_checkpoint",
    "write_tensors",
]

_META, _SUFFIX = "state.json", ".safetensors"


def write_checkpoint(
    folder: str | os.PathLike[str],
    tensors: Mapping[str, Mapping[str, torch.Tensor]],
    meta: Mapping[str, Any],
    keep: int = 1,
) -> None:
    """Write a checkpoint, all or nothing.

    Args:
        folder: where it shall be.
        tensors: for each file (without suffix) its tensors by name.
        meta: anything JSON can hold.
        keep: how many checkpoints to leave: this checkpoint and older ones.

    Raises:
        CheckpointError: the folder cannot be written, holds something else, or `meta` holds what JSON cannot.
        OptionError: `keep` is no whole number from 1.
    """
    begin_checkpoint(folder)
    for name, group in tensors.items():
        write_tensors(folder, name, group)
    commit_checkpoint(folder, meta, keep)


def begin_checkpoint(folder: str | os.PathLike[str]) -> None:
    """Make the empty folder beside `folder` that `write_tensors` writes to; what a dead run left there goes.

    Raises:
        CheckpointError: it cannot be made, or `folder` exists and is no checkpoint: nothing else is ever replaced.
    """
    target, partial = _place(folder), _partial(folder)
    for present in (target, *_present(target)):
        if os.path.lexists(present) and not _is_checkpoint(present):
            raise CheckpointError(
                f"{str(present)!r} exists and is no checkpoint",
                reason="a checkpoint would take its place",
                way_out="name a folder that does not exist yet",
            )
    with _writing(folder):
        target.parent.mkdir(parents=True, exist_ok=True)
        if partial.exists():
            shutil.rmtree(partial)
        partial.mkdir()


def write_tensors(folder: str | os.PathLike[str], name: str, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write one file of the checkpoint that is being written, and sync it.

    Args:
        folder: where the checkpoint shall be.
        name: of the file, without suffix.
        tensors: by name, of any device; tensors of one file must not share memory.

    Raises:
        CheckpointError: the file cannot be written.
    """
    path = _partial(folder) / f"{name}{_SUFFIX}"
    with _writing(folder):
        save_file({key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}, path)
        sync(path)


def commit_checkpoint(folder: str | os.PathLike[str], meta: Mapping[str, Any], keep: int = 1) -> None:
    """Write `meta` and the manifest over all files, and rename the folder into its place.

    Raises:
        CheckpointError: the folder cannot be written, or `meta` holds what JSON cannot.
        OptionError: `keep` is no whole number from 1.
    """
    target, partial = _place(folder), _partial(folder)
    with _writing(folder):
        if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
            raise OptionError(f"keep is {keep!r}", way_out="give the number of checkpoints to keep, from 1")
        (partial / _META).write_text(_json(meta))
        sync(partial / _META)
        (partial / MANIFEST).write_text(manifest_of(sorted(partial.iterdir())))
        sync(partial / MANIFEST)
        sync(partial)
        _make_room(target)
        os.replace(partial, target)
        sync(target.parent)
        for oldest in reversed(_present(target)[keep:]):
            shutil.rmtree(oldest)


def has_checkpoint(folder: str | os.PathLike[str]) -> bool:
    """Whether there is a checkpoint at `folder`, or one before it, whole or damaged; what a dead run left is none."""
    return any(_is_checkpoint(checkpoint) and any(checkpoint.iterdir()) for checkpoint in _present(_place(folder)))


def read_checkpoint(folder: str | os.PathLike[str]) -> tuple[dict[str, dict[str, torch.Tensor]], dict[str, Any]]:
    """Return the tensors by file and the JSON part of a checkpoint, after checking every file's hash.

    Where the newest is torn or altered, that is said and the one before is read; where a run died between the two
    renames of a write, the one before is the newest.

    Raises:
        CheckpointError: there is none, none is whole (the files are named), or it has another layout.

    Warns:
        UserWarning: a damaged one was passed over; names the file.
    """
    target = _place(folder)
    if target.is_file():
        raise CheckpointError(
            f"{str(target)!r} is a file, and a checkpoint is a folder",
            way_out="ontrain.training.checkpoint.aggregate_checkpoints reads files of onnxruntime.training",
        )
    refused: list[str] = []
    for checkpoint in _present(target):
        try:
            content = _read(checkpoint)
        except DamagedCheckpointError as error:
            refused.append(" ".join(filter(None, (error.problem, error.reason and f"({error.reason})"))))
            continue
        if refused:
            warnings.warn("\n  ".join([*refused, f"the checkpoint before it is used: {checkpoint}"]), stacklevel=3)
        return content
    if not refused:
        raise CheckpointError(
            f"there is no checkpoint at {target}", way_out="give the folder that save_checkpoint was given"
        )
    raise CheckpointError(
        "\n  ".join(refused), way_out="load another checkpoint; with keep=2 and more, older ones are kept beside it"
    )


@contextlib.contextmanager
def _writing(folder: str | os.PathLike[str]) -> Iterator[None]:
    """What can go wrong while files are written ends as one error, and leaves no half-written folder."""
    try:
        yield
    except (OSError, SafetensorError, OntrainError) as error:
        shutil.rmtree(_partial(folder), ignore_errors=True)
        if isinstance(error, OntrainError):
            raise
        raise CheckpointError(
            f"cannot write the checkpoint {os.fspath(folder)!r}",
            reason=str(error),
            way_out="choose a writable folder with room for the checkpoint before and this one",
        ) from error


def _read(folder: Path) -> tuple[dict[str, dict[str, torch.Tensor]], dict[str, Any]]:
    tensors: dict[str, dict[str, torch.Tensor]] = {}
    meta: Any = None
    for path in check_files(folder):
        try:
            if path.suffix == _SUFFIX:
                tensors[path.stem] = load_file(path)
            elif path.name == _META:
                meta = json.loads(read_file(path, MOST_TEXT))
        except (OSError, SafetensorError, ValueError, RecursionError, MemoryError) as error:
            raise DamagedCheckpointError(f"{path} cannot be read", reason=str(error)) from error
    if not isinstance(meta, dict):
        raise CheckpointError(f"{folder / _META} holds no JSON object", way_out="give a folder of save_checkpoint")
    return tensors, meta


def _json(meta: Mapping[str, Any]) -> str:
    try:
        _check_keys(meta)
        return json.dumps(dict(meta), indent=1, sort_keys=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError("the user's part of a checkpoint must be plain JSON", reason=str(error)) from error


def _check_keys(value: Any) -> None:
    """JSON would make texts of other keys, without a word."""
    for key, item in value.items() if isinstance(value, Mapping) else ():
        if not isinstance(key, str):
            raise TypeError(f"the key {key!r} is a {type(key).__name__}")
        _check_keys(item)
    for item in value if isinstance(value, list | tuple) else ():
        _check_keys(item)


def _place(folder: str | os.PathLike[str]) -> Path:
    place = Path(os.path.abspath(folder))
    if not place.name:
        raise CheckpointError(f"{os.fspath(folder)!r} cannot be a checkpoint", way_out="give a folder with a name")
    return place


def _partial(folder: str | os.PathLike[str]) -> Path:
    target = _place(folder)
    return target.with_name(f".{target.name}.partial")


def _older(target: Path, age: int) -> Path:
    return target.with_name(f"{target.name}~{age}") if age else target


def _present(target: Path) -> list[Path]:
    """What stands at a checkpoint's place and behind it, the newest first."""
    # A run that died while it made room left a gap at one age at most.
    folders, age = [], 0
    while _older(target, age).exists() or _older(target, age + 1).exists():
        folders += [_older(target, age)] if _older(target, age).exists() else []
        age += 1
    return folders


def _make_room(target: Path) -> None:
    """Let every checkpoint up to the first gap be one older, the oldest first."""
    if target.is_dir() and not any(target.iterdir()):
        target.rmdir()
    gap = 0
    while _older(target, gap).exists():
        gap += 1
    for age in range(gap, 0, -1):
        os.replace(_older(target, age - 1), _older(target, age))


def _is_checkpoint(folder: Path) -> bool:
    """Whether a folder is empty or a checkpoint, be it damaged."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    names = {entry.name for entry in folder.iterdir()}
    ours = names & {MANIFEST, _META}
    return not names or len(ours) == 2 or bool(ours and all(n in ours or n.endswith(_SUFFIX) for n in names))
