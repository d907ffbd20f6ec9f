"""Where a run begins: at step 0, with weights given, where a phase was left, or behind phase 1."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from harness.checkpoints import existing, newest
from harness.files import DataError
from harness.processes import Team
from transformers import BertConfig, BertForPreTraining

from ontrain.distributed import find_processes
from pretraining.flags import Options
from pretraining.weights import fitted, padded_size, plain, read_weights

PREFIX = "ckpt_"


class Start(NamedTuple):
    """Updates of this phase that are done, the position in the data (None: its beginning), and what is said of it."""

    step: int = 0
    position: dict[str, int] | None = None
    note: str = ""


def identity(options: Options, config: BertConfig) -> dict[str, Any]:
    """Return what must be the same when a run goes on."""
    return {
        "engine": str(options.engine), "seed": options.seed, "vocab_size": config.vocab_size,
        "heads": config.num_attention_heads, "config": plain(config),
    }  # fmt: skip


def join(options: Options) -> Team:
    """Meet the other processes; they part when the program ends."""
    if find_processes().world_size > 1:
        if options.allreduce_post_accumulation_fp16:
            raise DataError(
                "--allreduce_post_accumulation_fp16: gradients are added up over processes in float32 here, as over "
                "micro-batches; leave the flag out"
            )
        if options.use_ib:
            os.environ["NCCL_IB_DISABLE"] = "0"
    old_launcher = options.local_rank >= 0 and not options.use_env
    return Team.join(options.device, local_rank=options.local_rank if old_launcher else None)


def check_folder(options: Options) -> None:
    """Refuse, before anything is loaded, to overwrite another run's checkpoints, and to go on from nothing."""
    folder, resumes, weights = options.output_dir, options.resume_from_checkpoint, options.init_checkpoint
    there = ", ".join(path.name for path in existing(folder, PREFIX).values())
    if there and not resumes:
        raise DataError(
            f"--output_dir {folder} holds {there}: give --resume_from_checkpoint to go on, or another folder to begin "
            "anew"
        )
    if there or weights is not None:
        return
    if resumes and not options.phase2:
        raise DataError(f"--resume_from_checkpoint: there is no ckpt_N in {folder}: leave the flag out")
    if resumes:
        raise DataError(
            f"--resume_from_checkpoint: there is no ckpt_{options.phase1_end_step} of phase 1 in {folder}: run phase 1 "
            "first, or name weights by --init_checkpoint"
        )
    if options.phase2:
        raise DataError(
            "--phase2 goes on from phase 1: give --resume_from_checkpoint with phase 1's --output_dir, or weights by "
            "--init_checkpoint"
        )


def begin(
    options: Options, trainer: Any, model: BertForPreTraining, config: BertConfig, warn: Callable[[str], None]
) -> Start:
    """Load what the run begins with; `warn` is told of damaged checkpoints."""
    checkpoints = existing(options.output_dir, PREFIX)
    if not options.resume_from_checkpoint or not checkpoints:
        if options.init_checkpoint is None:
            return Start()
        state, _ = read_weights(options.init_checkpoint)
        left = fitted(state, model, padded_size(config.vocab_size))
        said = f"weights of {options.init_checkpoint}"
        return Start(note=said + (f"; not in it, so as initialised: {', '.join(left)}" if left else ""))
    number, user = _load(options, trainer, checkpoints, identity(options, config), warn)
    phase, step = int(user.get("phase", 1)), int(user.get("step", 0))
    if phase == 2 and not options.phase2:
        raise DataError(f"ckpt_{number} is of phase 2: give --phase2, or --resume_step for one of phase 1")
    if phase == 1 and options.phase2:
        if step < options.phase1_end_step:
            raise DataError(
                f"phase 1 is not finished: ckpt_{number} is of its step {step}, and --phase1_end_step says "
                f"{options.phase1_end_step}; train on in phase 1, or give --phase1_end_step {step}"
            )
        return Start(note=f"phase 2 begins with ckpt_{number}")
    position, before = user.get("position"), int(user.get("micro_batch", options.micro_batch))
    if position is not None and before != options.micro_batch:
        position = {**position, "batch": int(position["batch"]) * before // options.micro_batch}
    return Start(step, position, f"resumed after step {step} of phase {phase} (ckpt_{number})")


def _load(
    options: Options, trainer: Any, checkpoints: Mapping[int, Path], now: Mapping[str, Any], warn: Callable[[str], None]
) -> tuple[int, dict[str, Any]]:
    """Load --resume_step's checkpoint, or the newest that is whole; return its number and what was saved beside it."""

    def load(path: Path) -> dict[str, Any]:
        _compare(path, now)
        return trainer.load_checkpoint(path)

    number = options.resume_step
    if number >= 0 and number not in checkpoints:
        there = ", ".join(path.name for path in checkpoints.values())
        raise DataError(f"--resume_step {number}: there is no ckpt_{number} in {options.output_dir}, but {there}")
    paths = [checkpoints[number]] if number >= 0 else list(checkpoints.values())[::-1]
    path, user = newest(paths, load, lambda path, error: warn(f"warning: {path.name} is left aside: {error}"))
    return int(path.name.removeprefix(PREFIX)), user


def _compare(path: Path, now: Mapping[str, Any]) -> None:
    """Refuse a checkpoint of another run; loading will say what is wrong with one that cannot be read."""
    try:
        before = json.loads((path / "state.json").read_text())["user_dict"]["identity"]
    except (OSError, ValueError, KeyError, TypeError):
        return
    for name, value in now.items():
        if name in before and before[name] != value:
            changed = f"{before[name]!r}, this run has {value!r}"
            if isinstance(value, dict):
                keys = sorted(k for k in {**value, **before[name]} if value.get(k) != before[name].get(k))
                changed = "; ".join(f"{k} was {before[name].get(k)!r} and is {value.get(k)!r}" for k in keys)
            raise DataError(
                f"{path.name} was made with another {name}: {changed}. To begin with its weights alone, convert it "
                "(convert_checkpoint.py) and give --init_checkpoint with a new --output_dir"
            )
