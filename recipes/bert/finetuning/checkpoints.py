"""A run's state between two updates as `ontrain.checkpoint` writes it: whole or not at all, hashed, without pickle."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from corpus.workspace import DataError
from torch import nn

from finetuning.processes import Team
from ontrain.checkpoint import read_checkpoint, write_checkpoint
from ontrain.errors import CheckpointError

__all__ = ["State", "clear", "find"]

_FOLDER, _MOMENTS = "checkpoint", ("step", "exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class State:
    """What a run changes as it goes: the model, AdamW's moments, the loss scale; and torch's random state."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler

    def save(self, output: Path, update: int, identity: Mapping[str, Any], keep: int, team: Team) -> None:
        """Write the state after `update` updates; the newest `keep` checkpoints stay.

        Model and moments are the same in all processes, and the first writes them; random states are each one's own.

        Args:
            output: the run's folder.
            update: how many updates are made.
            identity: plain JSON of what the run is: its settings, data and initial weights.
            keep: at least 1.
            team: all call this method.

        Raises:
            CheckpointError: the folder cannot be written; the checkpoints before stay.
            ProcessError: the same, said to the other processes.
        """
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        moments = {
            f"{key}.{names[parameter]}": state[key]
            for parameter, state in self.optimizer.state.items()
            for key in state
        }
        random = {"cpu": team.gather(torch.get_rng_state())}
        if self._cuda:
            random["cuda"] = team.gather(torch.cuda.get_rng_state())
        tensors = {"model": self.model.state_dict(), "optimizer": moments, "random": random}
        meta = {"update": update, "identity": dict(identity), "scaler": self.scaler.state_dict()}

        def write() -> None:
            try:
                write_checkpoint(output / _FOLDER, tensors, meta, keep)
            except CheckpointError as error:
                way_out = "what is finished stays: make room and give the same command again"
                raise CheckpointError(error.problem, reason=error.reason, way_out=way_out) from error

        team.first_does("write the checkpoint", write)

    def restore(self, found: Found, team: Team) -> None:
        """Put everything back, in each process."""
        self.model.load_state_dict(found.tensors["model"])
        moments = found.tensors["optimizer"]
        for name, parameter in self.model.named_parameters():
            if f"step.{name}" in moments:
                self.optimizer.state[parameter] = {
                    key: moments[f"{key}.{name}"].to(parameter.device) for key in _MOMENTS
                }
        if found.scaler:
            self.scaler.load_state_dict(found.scaler)
        torch.set_rng_state(found.tensors["random"]["cpu"][team.rank].clone())
        if self._cuda:
            torch.cuda.set_rng_state(found.tensors["random"]["cuda"][team.rank].clone())

    @property
    def _cuda(self) -> bool:
        return next(self.model.parameters()).is_cuda


@dataclass(frozen=True)
class Found:
    """The content of a checkpoint, and what was said about newer ones that are damaged."""

    update: int
    tensors: dict[str, dict[str, torch.Tensor]]
    scaler: dict[str, Any]
    warnings: list[str]


def find(output: Path, identity: Mapping[str, Any]) -> Found | None:
    """Return the newest whole checkpoint of a run's folder, None if it never had one.

    Raises:
        DataError: the checkpoint is of another run; names what differs.
        CheckpointError: all are damaged; names the files.
    """
    if not any(output.glob(f"{_FOLDER}*")):
        return None
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            tensors, meta = read_checkpoint(output / _FOLDER)
        except CheckpointError as error:
            raise CheckpointError(
                error.problem, reason=error.reason, way_out="--overwrite_output_dir begins anew"
            ) from error
    there = meta.get("identity", {})
    if differing := [key for key in identity if there.get(key) != identity[key]]:
        listed = ", ".join(f"{key} {there.get(key)} there, {identity[key]} here" for key in differing)
        raise DataError(
            f"{output} holds another run ({listed}): give another --output_dir, or --overwrite_output_dir to begin anew"
        )
    return Found(meta["update"], tensors, meta["scaler"], [str(one.message) for one in said])


def clear(output: Path) -> None:
    """Remove the checkpoints of an earlier run."""
    for folder in output.glob(f"{_FOLDER}*"):
        shutil.rmtree(folder)
