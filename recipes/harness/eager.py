"""The twin of a run in eager PyTorch: the same updates under ORTTrainer's method names, to compare with."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from harness.checkpoints import eager_state, restore_eager_state
from harness.processes import Team
from ontrain.checkpoint import read_checkpoint, write_checkpoint
from ontrain.errors import CheckpointError, NonFiniteLossError


class EagerTrainer:
    """Autograd, accumulation, clipping and an optimizer of torch.

    Attributes:
        updates: made so far.
        pending: micro-batches whose gradients wait for the next update.

    Args:
        model: that is trained.
        compute: from a batch's tensors to the loss, 0-d, and whatever else a step returns.
        optimizer: of the model's parameters.
        rate: the learning rate of the update after so many others; by default the optimizer's own.
        accumulation: micro-batches an update.
        max_norm: the gradient is clipped to it; 0 for not at all.
        team: the processes; gradients are means over them.
    """

    def __init__(
        self, model: nn.Module, compute: Callable[..., tuple[Tensor, ...]], optimizer: torch.optim.Optimizer, *,
        rate: Callable[[int], float] | None = None, accumulation: int = 1, max_norm: float = 1.0,
        team: Team | None = None,
    ) -> None:  # fmt: skip
        self.model, self.compute, self.optimizer, self.rate = model, compute, optimizer, rate
        self.accumulation, self.max_norm, self.team = accumulation, max_norm, team or Team()
        self.updates = self.pending = 0

    def train_step(self, *batch: Tensor) -> Any:
        """Return the loss of a micro-batch, and what comes with it if anything does.

        Each `accumulation`-th call updates the weights.
        """
        self.model.train()
        loss, *others = self.compute(*batch)
        if not loss.isfinite():
            raise NonFiniteLossError(f"the loss is {loss.item()} at step {self.updates + 1}")
        (loss / self.accumulation).backward()
        self.pending += 1
        if self.pending == self.accumulation:
            self._update()
        return (loss.detach(), *(other.detach() for other in others)) if others else loss.detach()

    def _update(self) -> None:
        if self.team.world is not None:
            for parameter in self.model.parameters():
                self.team.world.sum_(parameter.grad).div_(self.team.size)
        if self.max_norm:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)
        for group in self.optimizer.param_groups if self.rate is not None else ():
            group["lr"] = self.rate(self.updates)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.updates, self.pending = self.updates + 1, 0

    @torch.no_grad()
    def eval_step(self, *batch: Tensor) -> tuple[Tensor, ...]:
        """Return the loss of a batch and what comes with it, in evaluation mode."""
        self.model.eval()
        return self.compute(*batch)

    def save_checkpoint(self, folder: str | os.PathLike[str], user_dict: Mapping[str, Any]) -> None:
        """Write weights, moments and random state, between two updates; the first process writes."""
        if self.team.first:
            meta = {"engine": "pytorch", "updates": self.updates, "user_dict": dict(user_dict)}
            write_checkpoint(folder, eager_state(self.model, self.optimizer), meta)

    def load_checkpoint(self, folder: str | os.PathLike[str]) -> dict[str, Any]:
        """Take over what `save_checkpoint` wrote and return its `user_dict`."""
        tensors, meta = read_checkpoint(folder)
        if meta.get("engine") != "pytorch":
            raise CheckpointError(f"{folder} was not written by the eager twin", way_out="go on with --engine ontrain")
        restore_eager_state(self.model, self.optimizer, tensors, folder)
        self.updates = int(meta["updates"])
        user: dict[str, Any] = meta["user_dict"]
        return user

    def profile(self, *batch: Tensor) -> list[dict[str, Any]]:
        """Return the milliseconds of each operator in a step."""
        return profiled(lambda: self.train_step(*batch))


def profiled(step: Callable[[], Any]) -> list[dict[str, Any]]:
    """Return the milliseconds of each operator that `step` runs on the CPU."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as trace:
        step()
    return [
        {"operator": event.key, "calls": event.count, "milliseconds": event.self_cpu_time_total / 1000}
        for event in trace.key_averages()
    ]
