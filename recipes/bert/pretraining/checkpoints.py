"""The checkpoints in an output folder: `ckpt_N`, N counting the steps of both phases."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from corpus.workspace import DataError

from ontrain.errors import CheckpointError
from pretraining.engine import Engine

__all__ = ["existing", "load", "path_of", "save"]

_NAME = re.compile(r"ckpt_(\d+)")


def path_of(folder: Path, number: int) -> Path:
    """Return where the checkpoint after `number` steps lies."""
    return folder / f"ckpt_{number}"


def existing(folder: Path) -> dict[int, Path]:
    """Return the checkpoints of a folder by number, the newest last."""
    if not folder.is_dir():
        return {}
    found = {int(m.group(1)): path for path in folder.iterdir() if (m := _NAME.fullmatch(path.name)) and path.is_dir()}
    return dict(sorted(found.items()))


def save(engine: Engine, folder: Path, number: int, user: Mapping[str, Any], keep: int, rank: int) -> Path:
    """Write a checkpoint; after that only the newest `keep` stay.

    Raises:
        CheckpointError: it cannot be written; those before stay.
    """
    path = path_of(folder, number)
    engine.save(path, user)
    if rank == 0:
        for old in list(existing(folder).values())[:-keep]:
            shutil.rmtree(old, ignore_errors=True)
    return path


def load(
    engine: Engine,
    folder: Path,
    number: int,
    check: Callable[[int, Mapping[str, Any]], None],
    warn: Callable[[str], None],
) -> tuple[int, dict[str, Any]]:
    """Load the checkpoint `number`, or for −1 the newest that is whole.

    Args:
        engine: takes it over.
        folder: the output folder.
        number: of the checkpoint.
        check: sees number and user's part before anything is loaded, and raises if it does not fit the run.
        warn: is told of damaged ones.

    Returns:
        Its number and what was saved beside the state.

    Raises:
        DataError: there is no such checkpoint, or none that can be read.
        CheckpointError: it is of another model.
    """
    found = existing(folder)
    if number >= 0:
        if number not in found:
            there = ", ".join(path.name for path in found.values()) or "none"
            raise DataError(f"--resume_step {number}: there is no ckpt_{number} in {folder}, but {there}")
        check(number, _user(found[number]))
        return number, engine.load(found[number])
    refused: list[str] = []
    for one, path in reversed(found.items()):
        check(one, _user(path))
        try:
            return one, engine.load(path)
        except CheckpointError as error:
            refused.append(str(error))
            warn(f"warning: {path.name} is left aside: {error}")
    raise DataError(f"no checkpoint in {folder} can be read:\n" + "\n".join(refused))


def _user(path: Path) -> dict[str, Any]:
    """What was saved beside the state; nothing where it cannot be read, which loading will say."""
    try:
        user: dict[str, Any] = json.loads((path / "state.json").read_text())["user_dict"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return user
