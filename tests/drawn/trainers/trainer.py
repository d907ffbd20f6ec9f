"""A network in ORTTrainer beside a written-out optimizer: losses of micro-batches, and parameters after five updates.

Accumulation, clipping, groups, schedules, frozen weights, a budget of memory and evaluations in between are drawn, and
whether another trainer goes on after two updates: from a checkpoint, from a state, or from a copy of a state.
"""

from __future__ import annotations

import copy
import math
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ontrain.training import ORTTrainer, ORTTrainerOptions, optim
from tests.drawn.draw import Draw
from tests.drawn.judge import OracleFails, Tolerance, compare, oracle
from tests.drawn.networks.losses import weight_of
from tests.drawn.networks.network import Network, draw_network, outputs_of
from tests.drawn.networks.parts import VOCABULARY, Batch, block, draw_batch
from tests.drawn.trainers.optimizers import Oracle, Settings, draw_settings

__all__ = ["block", "judge_trainer"]

UPDATES, TOTAL, WARMUP = 5, 8, 0.3
LOSS, EVALUATION, PARAMETER = Tolerance(5e-6, 1e-6), Tolerance(2e-6, 1e-7), Tolerance(1e-5, 2e-6)
SCHEDULES = {"linear": optim.lr_scheduler.LinearWarmupLRScheduler, "cosine": optim.lr_scheduler.CosineWarmupLRScheduler}
WITHOUT = ("packed", "selected")
"""A step has the sizes that follow from its batch's shape, so what takes rows out by a mask is refused."""


@dataclass(frozen=True)
class Plan:
    """How is trained.

    Attributes:
        settings: of the optimizer.
        accumulation: micro-batches of an update.
        frozen: names of parameters.
        further: options that change no number.
        schedule: a name of SCHEDULES, or None.
        handover: how another trainer goes on after two updates, or None.
    """

    settings: Settings
    accumulation: int
    frozen: list[str]
    further: dict[str, Any]
    schedule: str | None
    handover: str | None

    def options(self) -> ORTTrainerOptions:
        """Options for ORTTrainer, with a scheduler of their own."""
        utils: dict[str, Any] = {"frozen_weights": self.frozen, "grad_norm_clip": self.settings.clip is not None}
        if self.settings.clip is not None:
            utils["max_grad_norm"] = self.settings.clip
        options = {"batch": {"gradient_accumulation_steps": self.accumulation}, "utils": utils, **self.further}
        if self.schedule:
            options["lr_scheduler"] = SCHEDULES[self.schedule](total_steps=TOTAL, warmup=WARMUP)
        return ORTTrainerOptions(copy.deepcopy(options))

    def factor(self, update: int) -> float:
        """The schedule's factor on the rate, of an update counted from 0."""
        warmup = WARMUP * TOTAL
        if self.schedule is None:
            return 1.0
        if update < warmup:
            return update / max(1.0, warmup)
        share = (update - warmup) / max(1.0, TOTAL - warmup)
        return max(1 - share, 0.0) if self.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * share))


def _draw_plan(draw: Draw, network: Network) -> Plan:
    names = [name for name, _ in network.named_parameters()]
    further: dict[str, Any] = {}
    if draw.flag(0.2):
        further["graph_transformer"] = {"memory_budget": draw.choice([0.9, 0.95])}
    if draw.flag(1 / 3):
        further["debug"] = {"deterministic_compute": True}
    return Plan(
        draw_settings(draw, names), draw.choice([1, 1, 2, 3]), draw.sample(names, draw.choice([0, 0, 1])), further,
        draw.choice([None, None, *SCHEDULES]), draw.choice([None, "checkpoint", "state", "copied state"]),
    )  # fmt: skip


def judge_trainer(draw: Draw, family: str, drawn: list[str]) -> None:
    """Train a network with a block of this family."""
    with draw.alone():
        network = draw_network(draw, family, WITHOUT, results=["loss", "loss and logits"])
        batches, plan = [draw_batch(draw) for _ in range(3)], _draw_plan(draw, network)
        drawn += [str(network), str(plan)]
        for name, parameter in network.named_parameters():
            parameter.requires_grad_(name not in plan.frozen)
        run = _Run(network, plan)
        for step in range(plan.accumulation * UPDATES):
            if draw.flag(0.25):
                run.evaluate(draw.choice(batches))
            run.train(step, draw.choice(batches))
            if plan.handover and step + 1 == 2 * plan.accumulation:
                run.hand_over()
        run.compare_parameters()


class _Run:
    """A network that the oracle trains, and a trainer of its copy."""

    def __init__(self, network: Network, plan: Plan) -> None:
        self._network, self._plan = network, plan
        self._other = copy.deepcopy(network)
        self._trainer = self._new_trainer(copy.deepcopy(network))
        self._parameters = dict(network.named_parameters())
        self._oracle = Oracle(plan.settings, self._parameters)
        self._updates, self._weight = 0, 0.0

    def _new_trainer(self, network: Network) -> ORTTrainer:
        inputs = [(name, ["batch", "length"]) for name in ("tokens", "mask", "labels")]
        outputs: list[tuple[Any, ...]] = [("loss", [], True)]
        if network.results == "loss and logits":
            outputs.append(("logits", ["batch", "length", VOCABULARY]))
        description = {"inputs": inputs, "outputs": outputs}
        return ORTTrainer(network, description, self._plan.settings.config(), options=self._plan.options())

    def evaluate(self, batch: Batch) -> None:
        """Compare a loss in evaluation, which changes nothing."""
        self._network.eval()
        with oracle(), torch.no_grad():
            expected = outputs_of(self._network(*batch.tensors))[0]
        self._network.train()
        compare("loss in evaluation", expected, _loss(self._trainer.eval_step(*batch.tensors)), EVALUATION)

    def train(self, step: int, batch: Batch) -> None:
        """Compare the loss of a micro-batch; behind an update's last one, the oracle updates."""
        weight = weight_of(self._network.loss_name, batch, self._network.class_weights)
        with oracle():
            expected = outputs_of(self._network(*batch.tensors))[0]
            if not torch.isfinite(expected):
                raise OracleFails("the loss is not finite")
            (expected * weight).backward()
        self._weight += weight
        actual = _loss(self._trainer.train_step(*batch.tensors))
        compare(f"loss of step {step}", expected.detach(), actual, LOSS)
        if (step + 1) % self._plan.accumulation == 0:
            self._update()

    def _update(self) -> None:
        """The accumulated gradient is that of the weighed mean."""
        for parameter in self._parameters.values():
            if parameter.grad is not None:
                parameter.grad /= self._weight
        self._oracle.update(self._plan.factor(self._updates))
        self._network.zero_grad()
        self._updates, self._weight = self._updates + 1, 0.0

    def hand_over(self) -> None:
        """Another trainer, of weights of its own, goes on from what this one saves."""
        with torch.no_grad():
            for parameter in self._other.parameters():
                parameter.uniform_(-1, 1)
        other = self._new_trainer(self._other)
        if self._plan.handover == "checkpoint":
            with tempfile.TemporaryDirectory() as folder:
                self._trainer.save_checkpoint(str(Path(folder, "checkpoint")))
                other.load_checkpoint(str(Path(folder, "checkpoint")))
        else:
            state = self._trainer.state_dict()
            other.load_state_dict(copy.deepcopy(state) if self._plan.handover == "copied state" else state)
        self._trainer = other

    def compare_parameters(self) -> None:
        """Compare all parameters."""
        for name, parameter in self._parameters.items():
            actual = torch.as_tensor(self._trainer.parameter(name)).double()
            compare(f"parameter {name}", parameter.detach(), actual, PARAMETER)


def _loss(outputs: Any) -> torch.Tensor:
    """The loss of a step, in float64."""
    loss = outputs[0] if isinstance(outputs, list | tuple) else outputs
    return torch.as_tensor(loss).detach().double()
