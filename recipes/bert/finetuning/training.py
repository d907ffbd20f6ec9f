"""The loop: a plain PyTorch loop, in which `ORTModule(model)` is the only line that knows of ontrain's engine.

Under a launcher each process takes its share of an update's micro-batches, and DistributedDataParallel around the
module averages their gradients. The weights are those of one process that sees the micro-batches of all.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from corpus.workspace import digest
from rich.console import Console
from terminal import progress, stopping
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from finetuning import checkpoints
from finetuning.examples import Examples, epoch_updates
from finetuning.journal import Interrupted, log, losses_until
from finetuning.processes import Team
from finetuning.settings import Engine, Habits, Precision, Settings
from ontrain.errors import NonFiniteLossError
from ontrain.training.ortmodule import ORTModule

__all__ = ["Trained", "train"]


@dataclass(frozen=True)
class Trained:
    """What a run did, this time."""

    updates: int
    """All of them, those before a resumption too."""
    resumed_after: int
    examples: int
    """This time."""
    seconds: float
    """This time."""
    losses: list[float]
    """One an update, from the first of the run."""

    def figures(self, examples: int, processes: int) -> dict[str, Any]:
        """What eval_results.json says of it; `examples` is how many there were to train on."""
        return {
            "examples": examples,
            "processes": processes,
            "updates": self.updates,
            "resumed_after": self.resumed_after,
            "seconds": round(self.seconds, 1),
            "examples_per_second": round(self.examples / self.seconds, 2) if self.examples else None,
            "first_loss": self.losses[0] if self.losses else None,
            "last_loss": self.losses[-1] if self.losses else None,
        }


def train(
    model: nn.Module,
    examples: Examples,
    settings: Settings,
    habits: Habits,
    output: Path,
    console: Console,
    team: Team | None = None,
) -> Trained:
    """Train a model in place, which ends on the team's device; go on from the newest checkpoint in `output`.

    Args:
        model: returns a loss where it is given targets.
        examples: with targets.
        settings: what decides the result, the number of processes among it.
        habits: what does not.
        output: folder for checkpoints and train_log.jsonl.
        console: for what is said.
        team: the processes; all call this function. By default a single one, on the CPU.

    Raises:
        DataError: the folder holds a run of other settings, data or weights, or cannot be written.
        CheckpointError: a checkpoint cannot be written; those before stay.
        ProcessError: another process failed; says what.
        NonFiniteLossError: the loss became NaN or infinite; the checkpoints before stay.
        Interrupted: Ctrl-C or SIGTERM, after a checkpoint.
    """
    team = team or Team()
    device = team.device
    identity = {**asdict(settings), "data": examples.digest(), "initial weights": _fingerprint(model)}
    if habits.overwrite_output_dir:
        team.first_does("clear the folder", lambda: checkpoints.clear(output))
    model.to(device)
    torch.manual_seed(settings.seed + team.rank)  # each process has dropout masks of its own
    optimizer = torch.optim.AdamW(
        _groups(model, settings.weight_decay), lr=settings.learning_rate, eps=settings.adam_epsilon, fused=True
    )
    scaler = torch.amp.GradScaler(device.type, enabled=settings.precision is Precision.fp16)
    state, total, start = checkpoints.State(model, optimizer, scaler), settings.updates(len(examples)), 0
    if found := checkpoints.find(output, identity):
        for said in found.warnings:
            console.print(f"warning: {said}")
        state.restore(found, team)
        start = found.update
        console.print(f"resumed after update {start} of {total}")
    losses = losses_until(output, start) if team.first else []
    engine = team.parallel(ORTModule(model) if settings.engine is Engine.ontrain else model)
    engine.train()

    began, done, update = time.perf_counter(), 0, start
    with (
        log(output) if team.first else nullcontext(_unheard) as add,
        stopping() as asked,
        progress(console, "training", total, start) as advance,
    ):
        for update, micro_batches in enumerate(islice(_updates(examples, settings, start), total - start), start + 1):
            rows = sum(len(one) for one in micro_batches)
            rate = settings.rate(update - 1, total)
            for group in optimizer.param_groups:
                group["lr"] = rate
            loss, shares = 0.0, team.shares(micro_batches)
            for number, (one, weight) in enumerate(shares, 1):
                batch = examples.batch(one, whole=settings.pad_to_max_length)
                with _alone(engine, last=number == len(shares)):
                    with _autocast(device, settings.precision):
                        mean = engine(**{name: tensor.to(device) for name, tensor in batch.items()}).loss
                    share = mean * weight  # of the mean over all rows of the update
                    scaler.scale(share * team.size).backward()  # the mean over processes is made of sums
                loss += share.item()
            loss = team.sum(loss)
            if not math.isfinite(loss):
                raise NonFiniteLossError(
                    f"the loss is {loss} at update {update}",
                    way_out=f"try a --learning_rate below {settings.learning_rate:g}; the checkpoints before stay",
                )
            scaler.unscale_(optimizer)
            if settings.max_grad_norm:
                nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

            done += rows
            losses.append(loss)
            add({"step": update, "loss": loss, "learning_rate": rate, "examples": rows})
            advance(update)
            if update % habits.logging_steps == 0 or update == total:
                recent = losses[-habits.logging_steps :]
                speed = done / (time.perf_counter() - began)
                console.print(
                    f"step {update}/{total} | epoch {update / settings.updates_an_epoch(len(examples)):.2f} "
                    f"| lr {rate:.2e} | loss {sum(recent) / len(recent):.4f} | {speed:.1f} examples/s"
                )
            last = update == total or team.sum(asked()) > 0
            if last or update % habits.save_steps == 0:
                state.save(output, update, identity, habits.save_total_limit, team)
            if last:
                break
    if update < total:
        raise Interrupted(f"interrupted after update {update} of {total}")
    return Trained(total, start, done, time.perf_counter() - began, losses)


def _unheard(row: dict[str, Any]) -> None:
    """The first process logs for all."""


def _alone(engine: nn.Module, *, last: bool) -> AbstractContextManager[None]:
    """What keeps processes from waiting for each other's gradients before the last micro-batch."""
    if last or not isinstance(engine, DistributedDataParallel):
        return nullcontext()
    return engine.no_sync()


def _updates(examples: Examples, settings: Settings, start: int) -> Iterator[list[Any]]:
    """Micro-batches of each update from `start` on, epoch after epoch without end."""
    epoch, skipped = divmod(start, settings.updates_an_epoch(len(examples)))
    while True:
        yield from islice(epoch_updates(examples, settings, epoch), skipped, None)
        epoch, skipped = epoch + 1, 0


def _groups(model: nn.Module, decay: float) -> list[dict[str, Any]]:
    """Biases and LayerNorms are not decayed."""
    named = list(model.named_parameters())
    plain = [parameter for name, parameter in named if name.endswith("bias") or "LayerNorm" in name]
    rest = [parameter for name, parameter in named if not (name.endswith("bias") or "LayerNorm" in name)]
    return [{"params": rest, "weight_decay": decay}, {"params": plain, "weight_decay": 0.0}]


def _autocast(device: torch.device, precision: Precision) -> torch.autocast:
    dtype = torch.bfloat16 if precision is Precision.bf16 else torch.float16
    return torch.autocast(device.type, dtype, enabled=precision is not Precision.fp32)


def _fingerprint(model: nn.Module) -> str:
    state = model.state_dict()
    return digest(
        *(part for name, tensor in state.items() for part in (name, tensor.cpu().contiguous().numpy().tobytes()))
    )
