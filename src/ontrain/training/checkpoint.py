"""Functions of onnxruntime.training.checkpoint: a trainer's state as one flat dictionary, and as a folder."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ontrain.arguments import checked_kind, checked_path
from ontrain.checkpoint import read_checkpoint
from ontrain.errors import CheckpointError, OptionError
from ontrain.training.flat_state import flat_state, nested_state
from ontrain.training.optim.lr_scheduler import WarmupLRScheduler
from ontrain.training.orttrainer import ORTTrainer
from ontrain.training.state import FULL_PRECISION, from_files
from ontrain.training.upstream_checkpoint import files_of_run, read_upstream_checkpoint

__all__ = [
    "aggregate_checkpoints",
    "experimental_load_checkpoint",
    "experimental_load_state_dict",
    "experimental_save_checkpoint",
    "experimental_state_dict",
]

_ALGORITHMS = {"AdamOptimizer": "AdamW", "LambOptimizer": "Lamb", "SGDOptimizer": "SGD"}


def experimental_state_dict(ort_trainer: ORTTrainer, include_optimizer_state: bool = True) -> dict[str, torch.Tensor]:
    """Return copies of parameters by name, and `Moment_1_{name}`, `Moment_2_{name}` and `Step` of the optimizer.

    `Run_State` has the rest of what a run consists of: loss scale, schedule, options.

    Warns:
        UserWarning: the moments are one process's share (ZeRO stage 1).
    """
    checked_kind("ort_trainer", ort_trainer, ORTTrainer, "give the ORTTrainer whose state is asked for")
    return flat_state(ort_trainer.state_dict(), include_optimizer_state)


def experimental_load_state_dict(
    ort_trainer: ORTTrainer, state_dict: Mapping[str, object], strict: bool = False
) -> None:
    """Take over what `experimental_state_dict` or `ORTTrainer.state_dict` returned.

    Where the trainer has another warmup schedule than the state, a new phase of training begins: weights, moments and
    counters are taken over, and the trainer's own schedule starts from here.

    Raises:
        CheckpointError: a shape does not fit, or, with `strict`, a name; nothing was changed.

    Warns:
        UserWarning: the schedules differ.
    """
    checked_kind("ort_trainer", ort_trainer, ORTTrainer, "give the ORTTrainer that takes the state over")
    state = nested_state(state_dict, ort_trainer.optim_config.spec().algorithm)
    ort_trainer.load_state_dict(_for_schedule(state, ort_trainer.options.lr_scheduler), strict)


def _for_schedule(state: dict[str, Any], scheduler: object) -> dict[str, Any]:
    """The state for a trainer with this scheduler; another one's settings are left out, its steps are over."""
    saved, info = state.get("lr_scheduler"), state.get("train_step_info")
    if not isinstance(scheduler, WarmupLRScheduler) or not isinstance(saved, Mapping) or not isinstance(info, Mapping):
        return state
    differing = [name for name, value in scheduler.settings.items() if saved.get(name) != value]
    if not differing:
        return state
    step = info.get("optimization_step", 0)
    told = ", ".join(f"{name} {saved.get(name)!r} there, {scheduler.settings[name]!r} here" for name in differing)
    warnings.warn(
        f"the state is of another learning-rate schedule ({told}): this trainer's begins at step {step}, its first",
        stacklevel=3,
    )
    others = {name: part for name, part in state.items() if name != "lr_scheduler"}
    return {**others, "train_step_info": {**info, "schedule_start": step}}


def experimental_save_checkpoint(
    ort_trainer: ORTTrainer,
    checkpoint_dir: str | os.PathLike[str],
    checkpoint_prefix: str = "ORT_checkpoint",
    checkpoint_state_dict: Mapping[str, object] | None = None,
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
        OptionError: nothing was trained yet, or `checkpoint_state_dict` holds tensors.
        CheckpointError: the folder cannot be written, or `checkpoint_state_dict` is no plain JSON.
    """
    checked_kind("ort_trainer", ort_trainer, ORTTrainer, "give the ORTTrainer to save")
    user_part = checked_kind(
        "checkpoint_state_dict", {} if checkpoint_state_dict is None else checkpoint_state_dict, Mapping,
        "give a dictionary of numbers and strings",
    )  # fmt: skip
    for name, value in user_part.items():
        if isinstance(value, torch.Tensor):
            raise OptionError(
                f"checkpoint_state_dict holds the tensor {name!r}",
                reason="a checkpoint is safetensors and JSON, and its tensors are the trainer's",
                way_out="give numbers and strings; parameters and moments are written anyway",
            )
    folder = _folder(checkpoint_dir, checkpoint_prefix)
    ort_trainer.save_checkpoint(folder, checkpoint_state_dict, include_optimizer_state)


def experimental_load_checkpoint(
    ort_trainer: ORTTrainer,
    checkpoint_dir: str | os.PathLike[str],
    checkpoint_prefix: str = "ORT_checkpoint",
    strict: bool = False,
) -> dict[str, Any]:
    """Take over what `experimental_save_checkpoint` wrote; return its `checkpoint_state_dict`.

    Where there is no such folder, onnxruntime.training's file `{checkpoint_prefix}.ort.pt` is read, or its files
    `{checkpoint_prefix}.ZeRO.{rank}.{last rank}.ort.pt` of all processes.

    Raises:
        CheckpointError: the folder or a file is missing, torn, altered, or of another model; nothing was changed.
    """
    checked_kind("ort_trainer", ort_trainer, ORTTrainer, "give the ORTTrainer that takes the state over")
    folder = _folder(checkpoint_dir, checkpoint_prefix)
    files = [] if folder.exists() else files_of_run(folder.parent, checkpoint_prefix)
    if not files:
        return ort_trainer.load_checkpoint(folder, strict=strict)
    checkpoint = read_upstream_checkpoint(files)
    experimental_load_state_dict(ort_trainer, checkpoint.flat, strict)
    return checkpoint.beside


def _folder(checkpoint_dir: object, checkpoint_prefix: object) -> Path:
    folder = Path(checked_path("checkpoint_dir", checkpoint_dir))
    return folder / checked_path("checkpoint_prefix", checkpoint_prefix)


def aggregate_checkpoints(paths: Sequence[str | os.PathLike[str]], pytorch_format: bool = True) -> dict[str, Any]:
    """Join what the processes of a run have saved into one state.

    Args:
        paths: files of onnxruntime.training, one of each process, pickled or HDF5; or a folder of `save_checkpoint`,
            which holds the parts of all processes.
        pytorch_format: return parameters and buffers by name, for a module's `load_state_dict`; otherwise what
            `ORTTrainer.load_state_dict` takes.

    Raises:
        CheckpointError: a file or folder is missing, torn, altered or of another kind, or a process's is not there.
    """
    places = [Path(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
    if not places:
        raise CheckpointError("there is nothing to aggregate", way_out="give the file of each process, or a folder")
    if len(places) == 1 and not places[0].is_file():
        state = from_files(*read_checkpoint(places[0]))
    else:
        checkpoint = read_upstream_checkpoint(places)
        state = nested_state(checkpoint.flat, _ALGORITHMS.get(str(checkpoint.optimizer), str(checkpoint.optimizer)))
        state["user_dict"] = checkpoint.beside
    weights: dict[str, Any] = state["model"][FULL_PRECISION]
    return weights if pytorch_format else state
