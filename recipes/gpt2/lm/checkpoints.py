"""The folders checkpoint-N of a run: written, kept in number, and found again."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

from lm.arguments import LATEST
from lm.engines import Trainer
from ontrain.errors import CheckpointError

__all__ = ["all_checkpoints", "resume", "save"]

_NAME = re.compile(r"checkpoint-(\d+)")


def all_checkpoints(folder: Path) -> list[Path]:
    """Return the run's checkpoints, the oldest first."""
    found = [(int(match[1]), path) for path in folder.glob("*") if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


def save(trainer: Trainer, folder: Path, step: int, setting: dict[str, Any], limit: int | None) -> Path:
    """Write checkpoint-`step`, then remove the oldest beyond `limit`; at any moment there is one that is whole."""
    path = folder / f"checkpoint-{step}"
    trainer.save_checkpoint(path, {"step": step, "setting": setting})
    others = [one for one in all_checkpoints(folder) if one != path]
    for one in others[: -(limit - 1) or None] if limit else []:
        shutil.rmtree(one)
    return path


def resume(trainer: Trainer, folder: Path, wanted: str, setting: dict[str, Any]) -> tuple[int, list[str]]:
    """Take over a checkpoint; of the newest ones those that are damaged are passed over.

    Args:
        trainer: that has captured its model.
        folder: the run's.
        wanted: a checkpoint's folder, or `LATEST`.
        setting: what decides the batches and updates; that of the checkpoint must be equal.

    Returns:
        How many updates are done, and why newer checkpoints were not used.

    Raises:
        CheckpointError: there is none to be used, or it is of another run.
    """
    candidates = all_checkpoints(folder)[::-1] if wanted == LATEST else [Path(wanted)]
    if not candidates:
        raise CheckpointError(f"{folder} holds no checkpoint to resume from", way_out="leave the option out to begin")
    refused: list[str] = []
    for path in candidates:
        try:
            about = trainer.load_checkpoint(path)
        except CheckpointError as error:
            if path == candidates[-1]:
                raise
            refused.append(str(error))
            continue
        before = about.get("setting", {})
        differing = [f"{key} {before.get(key)!r}, now {value!r}" for key, value in setting.items()
                     if before.get(key) != value]  # fmt: skip
        if differing:
            raise CheckpointError(
                f"{path} is of another run: {'; '.join(differing)}",
                way_out="give the options that it was begun with, or begin anew with its weights: "
                "--model_name_or_path with the folder of a finished run",
            )
        return int(about["step"]), refused
    raise AssertionError("the last candidate is used or raises")
