"""Where a run begins: at step 0, with weights given, where a phase was left, or behind phase 1."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from corpus.workspace import DataError
from transformers import BertConfig

from pretraining.checkpoints import existing, load
from pretraining.engine import Engine
from pretraining.model import PretrainingBert, padded_size
from pretraining.options import Options
from pretraining.weights import fitted, read_weights

__all__ = ["Start", "begin", "check_folder", "identity"]


@dataclass(frozen=True)
class Start:
    """Where to go on.

    Attributes:
        step: updates of this phase that are done.
        position: in the data; None for its beginning.
        note: said to the user.
    """

    step: int = 0
    position: dict[str, int] | None = None
    note: str = ""


def identity(options: Options, config: BertConfig) -> dict[str, Any]:
    """Return what must be the same when a run goes on."""
    return {
        "engine": str(options.engine),
        "seed": options.seed,
        "vocab_size": config.vocab_size,
        "heads": config.num_attention_heads,
        "config": {k: v for k, v in config.to_diff_dict().items() if k != "transformers_version"},
    }


def check_folder(options: Options) -> None:
    """Look at the output folder before anything is loaded.

    Raises:
        DataError: a run would overwrite another's checkpoints, or there is nothing to go on from.
    """
    found = existing(options.output_dir)
    if not options.resume_from_checkpoint:
        if found:
            raise DataError(
                f"--output_dir {options.output_dir} holds {', '.join(path.name for path in found.values())}: "
                "give --resume_from_checkpoint to go on, or another folder to begin anew"
            )
        if options.phase2 and options.init_checkpoint is None:
            raise DataError(
                "--phase2 goes on from phase 1: give --resume_from_checkpoint with phase 1's --output_dir, or weights "
                "by --init_checkpoint"
            )
    elif not found and options.init_checkpoint is None:
        lacking = f"ckpt_{options.phase1_end_step} of phase 1" if options.phase2 else "ckpt_N"
        raise DataError(
            f"--resume_from_checkpoint: there is no {lacking} in {options.output_dir}: "
            + ("run phase 1 first, or name weights by --init_checkpoint" if options.phase2 else "leave the flag out")
        )


def begin(
    options: Options, engine: Engine, model: PretrainingBert, config: BertConfig, warn: Callable[[str], None]
) -> Start:
    """Load what the run begins with.

    Raises:
        DataError: the checkpoint does not fit the flags, or phase 1 is not finished.
        CheckpointError: weights or checkpoint cannot be read.
    """
    found = existing(options.output_dir)
    if not options.resume_from_checkpoint or not found:
        if options.init_checkpoint is None:
            return Start()
        state, _ = read_weights(options.init_checkpoint)
        left = fitted(state, model, padded_size(config.vocab_size))
        said = f"weights of {options.init_checkpoint}"
        return Start(note=said + (f"; not in it, so as initialised: {', '.join(left)}" if left else ""))
    now = identity(options, config)
    number, user = load(
        engine,
        options.output_dir,
        options.resume_step,
        lambda n, user: _compare(user.get("identity", {}), now, n),
        warn,
    )
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
    position = _position(user, options.micro_batch)
    return Start(step, position, f"resumed after step {step} of phase {phase} (ckpt_{number})")


def _compare(before: Mapping[str, Any], now: Mapping[str, Any], number: int) -> None:
    for name, value in now.items():
        if name in before and before[name] != value:
            changed = f"{before[name]!r}, this run has {value!r}"
            if isinstance(value, dict):
                keys = sorted(k for k in {**value, **before[name]} if value.get(k) != before[name].get(k))
                changed = "; ".join(f"{k} was {before[name].get(k)!r} and is {value.get(k)!r}" for k in keys)
            raise DataError(
                f"ckpt_{number} was made with another {name}: {changed}. To begin with its weights alone, convert it "
                "(convert_checkpoint.py) and give --init_checkpoint with a new --output_dir"
            )


def _position(user: Mapping[str, Any], micro_batch: int) -> dict[str, int] | None:
    position = user.get("position")
    before = int(user.get("micro_batch", micro_batch))
    if position is None or before == micro_batch:
        return position
    return {**position, "batch": int(position["batch"]) * before // micro_batch}
