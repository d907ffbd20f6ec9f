"""The loop: a plain PyTorch loop, in which `ORTModule(model)` is the only line that knows of ontrain's engine.

Under a launcher each process takes its share of an update's micro-batches, and DistributedDataParallel around the
module averages their gradients. The weights are those of one process that sees the micro-batches of all.
"""

from __future__ import annotations

import math
import shutil
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

from harness.eager import decay_groups
from harness.files import DataError, digest
from harness.finetuning.examples import Examples, epoch_updates
from harness.finetuning.flags import Habits, Precision, Settings
from harness.journal import Journal
from harness.options import Engine
from harness.processes import Team, alone
from harness.terminal import Interrupted, progress, stopping
from ontrain.checkpoint import read_checkpoint, write_checkpoint
from ontrain.errors import CheckpointError, NonFiniteLossError
from ontrain.training.ortmodule import ORTModule


@dataclass(frozen=True)
class Trained:
    """What a run did: updates (those before a resumption too), examples and seconds of this time, all losses."""

    updates: int
    resumed_after: int
    examples: int
    seconds: float
    losses: list[float]

    def figures(self, examples: int, processes: int) -> dict[str, Any]:
        """What eval_results.json says of it; `examples` is how many there were to train on."""
        return {
            "examples": examples, "processes": processes, "updates": self.updates, "resumed_after": self.resumed_after,
            "seconds": round(self.seconds, 1),
            "examples_per_second": round(self.examples / self.seconds, 2) if self.examples else None,
            "first_loss": next(iter(self.losses), None), "last_loss": next(reversed(self.losses), None),
        }  # fmt: skip


def train(
    model: nn.Module, examples: Examples, settings: Settings, habits: Habits, output: Path, console: Console,
    team: Team | None = None,
) -> Trained:  # fmt: skip
    """Train a model in place, which ends on the team's device; go on from the newest checkpoint in `output`.

    All processes of the team call this. The model returns a loss where it is given targets. `output` gets checkpoints
    and train_log.jsonl. Raises `Interrupted` upon Ctrl-C or SIGTERM, after a checkpoint.
    """
    team = team or Team()
    device, precision = team.device, settings.precision
    identity = {**asdict(settings), "data": examples.digest(), "initial weights": _fingerprint(model)}
    if habits.overwrite_output_dir:
        team.first_does("clear the folder", lambda: [shutil.rmtree(path) for path in output.glob("checkpoint*")])
    model.to(device)
    torch.manual_seed(settings.seed + team.rank)  # each process has dropout masks of its own
    groups = decay_groups(model, lambda name: name.endswith("bias") or "LayerNorm" in name, settings.weight_decay)
    optimizer = torch.optim.AdamW(groups, lr=settings.learning_rate, eps=settings.adam_epsilon, fused=True)
    scaler = torch.amp.GradScaler(device.type, enabled=precision is Precision.fp16)
    half = torch.bfloat16 if precision is Precision.bf16 else torch.float16
    state = State(model, optimizer, scaler, team, output / "checkpoint", identity)
    total = settings.updates(len(examples))
    if start := state.restore(console):
        console.print(f"resumed after update {start} of {total}")
    journal = Journal(output / "train_log.jsonl", lambda row: row["step"] <= start, writes=team.first)
    losses = [row["loss"] for row in journal.rows()] if team.first else []
    engine = team.parallel(ORTModule(model) if settings.engine is Engine.ontrain else model)
    engine.train()

    def add_gradients(micro_batches: list[Any]) -> float:
        """Go forward and backward over this process's part of an update; return the loss, a mean over all its rows."""
        loss, shares = 0.0, team.shares(micro_batches)
        for number, (rows, weight) in enumerate(shares, 1):
            batch = examples.batch(rows, whole=settings.pad_to_max_length)
            with alone(engine, last=number == len(shares)):
                with torch.autocast(device.type, half, enabled=precision is not Precision.fp32):
                    mean = engine(**{name: tensor.to(device) for name, tensor in batch.items()}).loss
                share = mean * weight  # of the mean over all rows of the update
                scaler.scale(share * team.size).backward()  # the mean over processes is made of sums
            loss += share.item()
        return team.sum(loss)

    began, done, update = time.perf_counter(), 0, start
    with stopping() as asked, progress(console, "training", total, start) as advance:
        for update, micro_batches in enumerate(islice(_updates(examples, settings, start), total - start), start + 1):
            rate = settings.rate(update - 1, total)
            for group in optimizer.param_groups:
                group["lr"] = rate
            loss = add_gradients(micro_batches)
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

            count = sum(len(rows) for rows in micro_batches)
            done += count
            losses.append(loss)
            journal.add({"step": update, "loss": loss, "learning_rate": rate, "examples": count})
            advance(update)
            if update % habits.logging_steps == 0 or update == total:
                recent, speed = losses[-habits.logging_steps :], done / (time.perf_counter() - began)
                console.print(
                    f"step {update}/{total} | epoch {update / settings.updates_an_epoch(len(examples)):.2f} "
                    f"| lr {rate:.2e} | loss {sum(recent) / len(recent):.4f} | {speed:.1f} examples/s"
                )
            last = update == total or team.sum(asked()) > 0
            if last or update % habits.save_steps == 0:
                state.save(update, habits.save_total_limit)
            if last:
                break
    journal.close()
    if update < total:
        raise Interrupted(f"interrupted after update {update} of {total}")
    return Trained(total, start, done, time.perf_counter() - began, losses)


@dataclass(frozen=True)
class State:
    """What a run changes as it goes: the model, AdamW's moments, the loss scale; and torch's random state.

    Model and moments are the same in all processes, and the first writes them; random states are each one's own.
    `identity` is plain JSON of what the run is: its settings, data and initial weights.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    team: Team
    folder: Path
    identity: Mapping[str, Any]

    def save(self, update: int, keep: int) -> None:
        """Write the state after `update` updates; the newest `keep` checkpoints stay."""
        named = list(self.model.named_parameters())
        moments = {f"{key}.{name}": value for name, p in named for key, value in self.optimizer.state[p].items()}
        random = {"cpu": self.team.gather(torch.get_rng_state())}
        if self.team.device.type == "cuda":
            random["cuda"] = self.team.gather(torch.cuda.get_rng_state())
        tensors = {"model": self.model.state_dict(), "optimizer": moments, "random": random}
        meta = {"update": update, "identity": dict(self.identity), "scaler": self.scaler.state_dict()}

        def write() -> None:
            with _advising("what is finished stays: make room and give the same command again"):
                write_checkpoint(self.folder, tensors, meta, keep)

        self.team.first_does("write the checkpoint", write)

    def restore(self, console: Console) -> int:
        """Put back the newest whole checkpoint, in each process; return its update, 0 where there is none."""
        if not any(self.folder.parent.glob(f"{self.folder.name}*")):
            return 0
        with warnings.catch_warnings(record=True) as damaged, _advising("--overwrite_output_dir begins anew"):
            warnings.simplefilter("always")
            tensors, meta = read_checkpoint(self.folder)
        before = meta.get("identity", {})
        if differing := [key for key in self.identity if before.get(key) != self.identity[key]]:
            listed = ", ".join(f"{key} {before.get(key)} there, {self.identity[key]} here" for key in differing)
            raise DataError(
                f"{self.folder.parent} holds another run ({listed}): give another --output_dir, or "
                "--overwrite_output_dir to begin anew"
            )
        for warning in damaged:
            console.print(f"warning: {warning.message}")
        self.model.load_state_dict(tensors["model"])
        for name, p in self.model.named_parameters():
            if f"step.{name}" in tensors["optimizer"]:
                moments = {key: tensors["optimizer"][f"{key}.{name}"] for key in ("step", "exp_avg", "exp_avg_sq")}
                self.optimizer.state[p] = {key: moment.to(p.device) for key, moment in moments.items()}
        if meta["scaler"]:
            self.scaler.load_state_dict(meta["scaler"])
        torch.set_rng_state(tensors["random"]["cpu"][self.team.rank].clone())
        if self.team.device.type == "cuda":
            torch.cuda.set_rng_state(tensors["random"]["cuda"][self.team.rank].clone())
        return int(meta["update"])


@contextmanager
def _advising(way_out: str) -> Iterator[None]:
    """Say what can be done about a checkpoint that cannot be written or read."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(error.problem, reason=error.reason, way_out=way_out) from error


def _updates(examples: Examples, settings: Settings, start: int) -> Iterator[list[Any]]:
    """Micro-batches of each update from `start` on, epoch after epoch without end."""
    epoch, skipped = divmod(start, settings.updates_an_epoch(len(examples)))
    while True:
        yield from islice(epoch_updates(examples, settings, epoch), skipped, None)
        epoch, skipped = epoch + 1, 0


def _fingerprint(model: nn.Module) -> str:
    state = model.state_dict().items()
    return digest(*(part for name, t in state for part in (name, t.cpu().contiguous().numpy().tobytes())))
