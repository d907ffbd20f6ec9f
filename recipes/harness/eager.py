"""The twin of a run in eager PyTorch: the same updates under ORTTrainer's method names, to compare with."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from harness.checkpoints import eager_state, restore_eager_state
from harness.processes import Team, alone
from ontrain.checkpoint import read_checkpoint, write_checkpoint
from ontrain.errors import CheckpointError, NonFiniteLossError
from ontrain.training import amp


def decay_groups(model: nn.Module, spared: Callable[[str], bool], decay: float) -> list[dict[str, Any]]:
    """Return an optimizer's groups: parameters that weight decay pulls at, and those that it spares."""
    groups: tuple[list[Tensor], list[Tensor]] = ([], [])
    for name, parameter in model.named_parameters():
        groups[spared(name)].append(parameter)
    return [{"params": params, "weight_decay": rate} for params, rate in zip(groups, (decay, 0.0), strict=True)]


class EagerTrainer:
    """Autograd, accumulation, clipping and an optimizer of torch.

    Attributes:
        updates: made so far, skipped ones included.
        pending: micro-batches whose gradients wait for the next update.
        grad_norm, train_step_info: the norm of the last update's gradient before clipping, 0-d; its `all_finite`.
        optim_config: `lr` is the learning rate of the next update.

    Args:
        model: that is trained.
        compute: from a batch's tensors to the loss, 0-d, and whatever else a step returns. Where it is the model in
            DistributedDataParallel, this takes the means of gradients over the processes.
        optimizer: of the model's parameters.
        rate: the learning rate of the update after so many others; by default `optim_config.lr`.
        accumulation: micro-batches an update.
        max_norm: the gradient is clipped to it; 0 for not at all.
        team: the processes; gradients are means over them.
        half: in which `compute` makes its products, under `torch.autocast`; None for float32.
        scaler: of the loss; updates whose gradient overflows are skipped.
    """

    def __init__(
        self, model: nn.Module, compute: Callable[..., tuple[Tensor, ...]], optimizer: torch.optim.Optimizer, *,
        rate: Callable[[int], float] | None = None, accumulation: int = 1, max_norm: float = 1.0,
        team: Team | None = None, half: torch.dtype | None = None, scaler: amp.LossScaler | None = None,
    ) -> None:  # fmt: skip
        self.model, self.compute, self.optimizer, self.rate = model, compute, optimizer, rate
        self.accumulation, self.max_norm, self.team = accumulation, max_norm, team or Team()
        self.half, self.scaler = half, scaler
        self.updates = self.pending = 0
        self.grad_norm, self.train_step_info = torch.zeros(()), SimpleNamespace(all_finite=True)
        self.optim_config = SimpleNamespace(lr=optimizer.defaults["lr"])

    @property
    def loss_scale(self) -> float:
        """What the loss is multiplied by before its gradient is taken."""
        return 1.0 if self.scaler is None else float(self.scaler.loss_scale)

    def train_step(self, *batch: Tensor, fetches: Sequence[str] = ()) -> Any:
        """Return the loss of a micro-batch, and what comes with it; the norm of the gradient if it is fetched.

        Each `accumulation`-th call updates the weights.
        """
        self.model.train()
        with alone(self.compute, last=self.pending + 1 == self.accumulation):
            with nullcontext() if self.half is None else torch.autocast(batch[0].device.type, self.half):
                loss, *others = self.compute(*batch)
            # Of several processes none may leave before the gradients of all are added up.
            if self.scaler is None and self.team.world is None and not loss.isfinite():
                raise NonFiniteLossError(f"the loss is {loss.item()} at step {self.updates + 1}")
            (loss * (self.loss_scale / self.accumulation)).backward()
        self.pending += 1
        if self.pending == self.accumulation:
            self._update()
        results = [loss.detach(), *(other.detach() for other in others)]
        results += [self.grad_norm] if "grad_norm" in fetches else []
        return tuple(results) if len(results) > 1 else results[0]

    def _update(self) -> None:
        parameters, scale = list(self.model.parameters()), self.loss_scale
        if self.team.world is not None and not isinstance(self.compute, DistributedDataParallel):
            for parameter in parameters:
                self.team.world.sum_(parameter.grad).div_(self.team.size)
        if scale != 1.0:
            torch._foreach_mul_([p.grad for p in parameters if p.grad is not None], 1 / scale)
        self.grad_norm = nn.utils.clip_grad_norm_(parameters, self.max_norm or float("inf"))
        self.train_step_info = SimpleNamespace(all_finite=bool(self.grad_norm.isfinite()))
        if self.train_step_info.all_finite:
            for group in self.optimizer.param_groups:
                group["lr"] = self.optim_config.lr if self.rate is None else self.rate(self.updates)
            self.optimizer.step()
        elif scale <= 1.0:
            raise NonFiniteLossError(f"the norm of the gradient is {self.grad_norm:g} at step {self.updates + 1}")
        if self.scaler is not None:
            self.scaler.update(self.train_step_info)
        self.optimizer.zero_grad()
        self.updates, self.pending = self.updates + 1, 0

    @torch.no_grad()
    def eval_step(self, *batch: Tensor) -> tuple[Tensor, ...]:
        """Return the loss of a batch and what comes with it, in evaluation mode."""
        self.model.eval()
        return self.compute(*batch)

    def save_checkpoint(self, folder: str | os.PathLike[str], user_dict: Mapping[str, Any]) -> None:
        """Write weights, moments, random state and loss scale, between two updates; the first process writes."""
        if self.team.first:
            scale = None if self.scaler is None else self.scaler.state_dict()
            meta = {"engine": "pytorch", "updates": self.updates, "loss_scaler": scale, "user_dict": dict(user_dict)}
            write_checkpoint(folder, eager_state(self.model, self.optimizer), meta)

    def load_checkpoint(self, folder: str | os.PathLike[str]) -> dict[str, Any]:
        """Take over what `save_checkpoint` wrote and return its `user_dict`; other processes draw masks anew."""
        tensors, meta = read_checkpoint(folder)
        if meta.get("engine") != "pytorch":
            raise CheckpointError(f"{folder} was not written by the eager twin", way_out="go on with --engine ontrain")
        restore_eager_state(self.model, self.optimizer, tensors, folder, random=self.team.first)
        if self.scaler is not None and meta.get("loss_scaler"):
            self.scaler.load_state_dict(meta["loss_scaler"])
        self.updates = int(meta["updates"])
        user: dict[str, Any] = meta["user_dict"]
        return user

    def prepare(self, *batch: Tensor) -> None:
        """Do nothing: there is nothing to capture."""

    def state_dict(self, pytorch_format: bool = True) -> dict[str, Tensor]:
        """Return the parameters by their names in the model."""
        return {name: parameter.detach() for name, parameter in self.model.named_parameters()}

    def step_model(self) -> None:
        """Return None: there is no graph."""

    def peak_memory(self) -> dict[str, int]:
        """Return nothing: no memory is planned."""
        return {}

    def profile(self, *batch: Tensor) -> list[dict[str, Any]]:
        """Return the milliseconds of each operator that a step runs on the CPU."""
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as trace:
            self.train_step(*batch)
        return [
            {"operator": event.key, "calls": event.count, "milliseconds": event.self_cpu_time_total / 1000}
            for event in trace.key_averages()
        ]
