"""Functions of onnxruntime.training.checkpoint: a trainer's state as one flat dictionary, and as a folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ontrain.errors import CheckpointError, OptionError
from ontrain.training.flat_state import flat_state, nested_state
from ontrain.training.orttrainer import ORTTrainer
from ontrain.training.upstream_checkpoint import read_upstream_checkpoint

__all__ = [
    "experimental_load_checkpoint",
    "experimental_load_state_dict",
    "experimental_save_checkpoint",
    "experimental_state_dict",
]


def experimental_state_dict(ort_trainer: ORTTrainer, include_optimizer_state: bool = True) -> dict[str, torch.Tensor]:
    """Return copies of parameters by name, and `Moment_1_{name}`, `Moment_2_{name}` and `Step` of the optimizer."""
    return flat_state(ort_trainer.state_dict(), include_optimizer_state)


def experimental_load_state_dict(ort_trainer: ORTTrainer, state_dict: Mapping[str, Any], strict: bool = False) -> None:
    """Take over what `experimental_state_dict` returned.

    Raises:
        CheckpointError: a shape does not fit, or, with `strict`, a name; nothing was changed.
    """
    ort_trainer.load_state_dict(nested_state(state_dict, ort_trainer.optim_config.spec().algorithm), strict)


def experimental_save_checkpoint(
    ort_trainer: ORTTrainer,
    checkpoint_dir: str | os.PathLike[str],
    checkpoint_prefix: str = "ORT_checkpoint",
    checkpoint_state_dict: Mapping[str, Any] | None = None,
    include_optimizer_state: bool = True,
) -> None:
    """Write the trainer's state to the folder `{checkpoint_dir}/{checkpoint_prefix}`, all or nothing.

    Args:
        ort_trainer: after its first step.
        checkpoint_dir: made if it is missing.
        checkpoint_prefix: the folder's name.
        checkpoint_state_dict: plain JSON that `experimental_load_checkpoint` returns; tensors belong to the trainer.
        include_optimizer_state: write moments and counters, too.

    Raises:
        OptionError: nothing was trained yet, or `checkpoint_state_dict` is no plain JSON.
    """
    os.makedirs(checkpoint_dir, exist_ok=True)
    for name, value in (checkpoint_state_dict or {}).items():
        if isinstance(value, torch.Tensor):
            raise OptionError(
                f"checkpoint_state_dict holds the tensor {name!r}",
                reason="a checkpoint is safetensors and JSON, and its tensors are the trainer's",
                way_out="give numbers and strings; parameters and moments are written anyway",
            )
    folder = Path(checkpoint_dir) / checkpoint_prefix
    ort_trainer.save_checkpoint(folder, checkpoint_state_dict, include_optimizer_state)


def experimental_load_checkpoint(
    ort_trainer: ORTTrainer,
    checkpoint_dir: str | os.PathLike[str],
    checkpoint_prefix: str = "ORT_checkpoint",
    strict: bool = False,
) -> dict[str, Any]:
    """Take over what `experimental_save_checkpoint` wrote; return its `checkpoint_state_dict`.

    Where there is no such folder, a file `{checkpoint_prefix}.ort.pt` of onnxruntime.training is read.

    Raises:
        CheckpointError: the folder or file is missing, torn, altered, or of another model; nothing was changed.
    """
    folder = Path(checkpoint_dir) / checkpoint_prefix
    file = folder.with_name(f"{checkpoint_prefix}.ort.pt")
    if not folder.exists() and file.exists():
        state, beside = read_upstream_checkpoint(file)
        experimental_load_state_dict(ort_trainer, state, strict)
        return beside
    parts = sorted(folder.parent.glob(f"{checkpoint_prefix}.ZeRO.*.ort.pt"))
    if not folder.exists() and parts:
        raise CheckpointError(
            f"the checkpoint {checkpoint_prefix!r} is spread over {len(parts)} files",
            reason="each holds the state of one process",
            way_out="join them with onnxruntime's aggregate_checkpoints first",
        )
    return ort_trainer.load_checkpoint(folder, strict)
