"""The twin in eager PyTorch: torch.optim.AdamW and the schedule that ORTTrainer's graph has."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from harness.eager import EagerTrainer, decay_groups
from harness.processes import Team
from transformers import GPT2LMHeadModel

from lm.arguments import Arguments


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


def undecayed(model: GPT2LMHeadModel) -> list[str]:
    """Names of the parameters that weight decay spares: biases and layer norms, all vectors of GPT-2."""
    return [name for name, parameter in model.named_parameters() if parameter.ndim < 2]


def eager_trainer(arguments: Arguments, model: GPT2LMHeadModel, schedule: Schedule, team: Team) -> EagerTrainer:
    """Return what makes the same updates in eager PyTorch."""
    spared = undecayed(model)
    groups = decay_groups(model, lambda name: name in spared, arguments.weight_decay)
    # One fused kernel for all parameters of a group: the fastest Adam that eager PyTorch has.
    optimizer = torch.optim.AdamW(groups, lr=arguments.learning_rate, eps=arguments.adam_epsilon, fused=True)
    return EagerTrainer(
        model, lambda ids, labels: (model(input_ids=ids, labels=labels).loss,), optimizer, rate=schedule,
        accumulation=arguments.gradient_accumulation_steps, max_norm=arguments.max_grad_norm, team=team,
    )  # fmt: skip
