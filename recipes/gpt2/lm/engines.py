"""Who makes the steps: ORTTrainer, and a twin in eager PyTorch under the same method names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from lm.arguments import Arguments
from lm.processes import join, sum_
from ontrain.checkpoint import read_checkpoint, write_checkpoint
from ontrain.distributed import Processes
from ontrain.errors import CheckpointError, NonFiniteLossError, OptionError
from ontrain.training import ORTTrainer, amp, optim

__all__ = ["EagerTrainer", "Schedule", "Trainer", "make_trainer", "ort_trainer", "undecayed"]


class Trainer(Protocol):
    """What run_lm.py asks of an engine; `ORTTrainer` has it."""

    def prepare(self, input_ids: Tensor, labels: Tensor) -> tuple[Any, dict[str, float]]:
        """Do what comes before the first batch; return the seconds of each phase behind what the engine has made."""

    def train_step(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss of a batch; each --gradient_accumulation_steps-th call updates the weights."""

    def save_checkpoint(self, folder: str | os.PathLike[str], user_dict: Mapping[str, Any]) -> None:
        """Write all that the run consists of, and `user_dict`."""

    def load_checkpoint(self, folder: str | os.PathLike[str]) -> dict[str, Any]:
        """Take it over and return `user_dict`."""


@dataclass(frozen=True)
class Schedule:
    """The learning rate: linearly from 0 to `rate` over `warmup` updates, from there linearly to 0 at `total`."""

    rate: float
    warmup: int
    total: int

    def __call__(self, step: int) -> float:
        """Return the rate of the update after `step` others."""
        if step < self.warmup:
            return self.rate * step / self.warmup
        return self.rate * max(0.0, (self.total - step) / max(1, self.total - self.warmup))


def undecayed(model: nn.Module) -> list[str]:
    """Names of the parameters that weight decay spares: biases and layer norms, all vectors of GPT-2."""
    return [name for name, parameter in model.named_parameters() if parameter.ndim < 2]


def make_trainer(
    arguments: Arguments, model: nn.Module, total_steps: int, device: str, processes: Processes
) -> Trainer:
    """Return the engine that the options ask for.

    Raises:
        OptionError: an option that this engine lacks.
    """
    if arguments.warmup_steps >= total_steps:
        raise OptionError(
            f"--warmup_steps is {arguments.warmup_steps:,}, the run has {total_steps:,} updates",
            way_out="warm up in fewer",
        )
    if arguments.engine == "ontrain":
        # A single output is described, so that train_step returns a tensor and never a list.
        return cast(Trainer, ort_trainer(arguments, model, total_steps, device, processes))
    if arguments.fp16:
        raise OptionError("--fp16 is not for the eager twin", way_out="train with --engine ontrain, or without --fp16")
    join(processes, device)
    schedule = Schedule(arguments.learning_rate, arguments.warmup_steps, total_steps)
    return EagerTrainer(arguments, model, schedule, processes)


def ort_trainer(arguments: Arguments, model: nn.Module, total_steps: int, device: str, processes: Processes) -> Any:
    """The whole use of ontrain: what goes in and comes out, which optimizer, and what else is done in a step."""
    description = {
        # Dimensions with a name may vary. Only the loss is asked for, so that the scores of all tokens at once, the
        # largest tensor by far, are never made.
        "inputs": [("input_ids", ["batch", "length"]), ("labels", ["batch", "length"])],
        "outputs": [("loss", [], True)],
    }
    adam = optim.AdamConfig(
        params=[{"params": undecayed(model), "lambda_coef": 0.0}],
        lr=arguments.learning_rate, lambda_coef=arguments.weight_decay, epsilon=arguments.adam_epsilon,
    )  # fmt: skip
    warmup = arguments.warmup_steps / total_steps
    options: dict[str, Any] = {
        "batch": {"gradient_accumulation_steps": arguments.gradient_accumulation_steps},
        "device": {"id": device},
        "lr_scheduler": optim.lr_scheduler.LinearWarmupLRScheduler(total_steps=total_steps, warmup=warmup),
        "utils": {"seed": arguments.seed, "grad_norm_clip": arguments.max_grad_norm > 0},
    }
    if arguments.max_grad_norm > 0:
        options["utils"]["max_grad_norm"] = arguments.max_grad_norm
    if arguments.fp16:
        scaler = amp.DynamicLossScaler(loss_scale=2.0**20, up_scale_window=2000, max_loss_scale=2.0**24)
        options["mixed_precision"] = {"enabled": True, "loss_scaler": scaler}
    if processes.world_size > 1:
        options["distributed"] = {**processes.options(), "allreduce_post_accumulation": True}
    return ORTTrainer(model, description, adam, options=options)


class EagerTrainer:
    """The same updates in eager PyTorch: torch.optim.AdamW, clipping, accumulation and the schedule."""

    def __init__(self, arguments: Arguments, model: nn.Module, schedule: Schedule, processes: Processes) -> None:
        self.model, self.schedule, self.processes = model, schedule, processes
        self.accumulation, self.max_norm = arguments.gradient_accumulation_steps, arguments.max_grad_norm
        spared = set(undecayed(model))
        groups: list[dict[str, Any]] = [
            {"params": [p for n, p in model.named_parameters() if n not in spared]},
            {"params": [p for n, p in model.named_parameters() if n in spared], "weight_decay": 0.0},
        ]
        # One fused kernel for all parameters of a group: the fastest Adam that eager PyTorch has.
        self.optimizer = torch.optim.AdamW(
            groups, lr=arguments.learning_rate, betas=(0.9, 0.999), eps=arguments.adam_epsilon,
            weight_decay=arguments.weight_decay, fused=True,
        )  # fmt: skip
        self.updates = self.pending = 0

    def prepare(self, input_ids: Tensor, labels: Tensor) -> tuple[Any, dict[str, float]]:
        """Return nothing: eager PyTorch begins with the first batch."""
        return None, {}

    def train_step(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss of a batch; each `accumulation`-th call updates the weights."""
        self.model.train()
        loss: Tensor = self.model(input_ids=input_ids, labels=labels).loss
        if not loss.isfinite():
            raise NonFiniteLossError(f"the loss is {loss.item()} at step {self.updates + 1}")
        (loss / self.accumulation).backward()
        self.pending += 1
        if self.pending == self.accumulation:
            self._update()
        return loss.detach()

    def _update(self) -> None:
        for parameter in self.model.parameters() if self.processes.world_size > 1 else ():
            sum_(parameter.grad).div_(self.processes.world_size)
        if self.max_norm:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = self.schedule(self.updates)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.updates, self.pending = self.updates + 1, 0

    def save_checkpoint(self, folder: str | os.PathLike[str], user_dict: Mapping[str, Any]) -> None:
        """Write weights, moments and random state; between two updates."""
        tensors = {
            "model": dict(self.model.named_parameters()),
            "optimizer": {},
            "random": {"cpu": torch.get_rng_state()},
        }
        for name, p in self.model.named_parameters():
            tensors["optimizer"] |= {f"{name}.{key}": value for key, value in self.optimizer.state[p].items()}
        if torch.cuda.is_available():
            tensors["random"]["cuda"] = torch.cuda.get_rng_state()
        if self.processes.rank == 0:
            write_checkpoint(
                folder, tensors, {"engine": "pytorch", "updates": self.updates, "user_dict": dict(user_dict)}
            )

    def load_checkpoint(self, folder: str | os.PathLike[str]) -> dict[str, Any]:
        """Take over what `save_checkpoint` wrote and return its `user_dict`.

        Raises:
            CheckpointError: there is none, it is damaged, or it is another model's or engine's.
        """
        tensors, meta = read_checkpoint(folder)
        if meta.get("engine") != "pytorch":
            raise CheckpointError(f"{folder} was not written by the eager twin", way_out="go on with --engine ontrain")
        try:
            with torch.no_grad():
                for name, p in self.model.named_parameters():
                    moments = {key: tensors["optimizer"][f"{name}.{key}"] for key in ("step", "exp_avg", "exp_avg_sq")}
                    self.optimizer.state[p] = {key: value.to(p.device) for key, value in moments.items()}
                    p.copy_(tensors["model"][name])
            torch.set_rng_state(tensors["random"]["cpu"])
            if "cuda" in tensors["random"]:
                torch.cuda.set_rng_state(tensors["random"]["cuda"])
        except (KeyError, RuntimeError) as error:
            raise CheckpointError(f"{folder} is a checkpoint of another model", reason=str(error)) from error
        self.updates = int(meta["updates"])
        user: dict[str, Any] = meta["user_dict"]
        return user
