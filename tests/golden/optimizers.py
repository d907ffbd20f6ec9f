"""Optimizers and schedules on the getting-started model's small twin: `python -m tests.golden.optimizers` writes anew.

The curves come from loops in eager PyTorch: torch.optim's optimizers where there are such, LAMB and the decay after the
update written out here, and the learning rates of Hugging Face's schedules by their formulas.
"""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ontrain.training import optim
from ontrain.training.optim import lr_scheduler

FOLDER = Path(__file__).parent
STEPS, WARMUP = 200, 0.1
WORDS, LENGTH, BATCH = 19, 6, 4

Parameters = Iterable[nn.Parameter]


class Lamb(torch.optim.Optimizer):
    """You et al. 2020, algorithm 2, a tensor at a time; no trust where a norm is zero."""

    def __init__(self, params: Parameters, lr: float, betas: tuple[float, float], eps: float, decay: float) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "decay": decay})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            (a, b), decay = group["betas"], group["decay"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(t=0, m=torch.zeros_like(p), v=torch.zeros_like(p))
                state["t"] += 1
                state["m"] = a * state["m"] + (1 - a) * p.grad
                state["v"] = b * state["v"] + (1 - b) * p.grad**2
                m, v = state["m"] / (1 - a ** state["t"]), state["v"] / (1 - b ** state["t"])
                update = m / (v.sqrt() + group["eps"]) + decay * p
                weight, size = p.norm(), update.norm()
                trust = weight / size if weight > 0 and size > 0 else 1.0
                p -= group["lr"] * trust * update


class DecayAfter(torch.optim.Optimizer):
    """Adam whose decay is applied to the updated weight, as in transformers' former AdamW."""

    def __init__(self, params: Parameters, lr: float, decay: float) -> None:
        super().__init__(params, {"lr": lr, "decay": decay})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(t=0, m=torch.zeros_like(p), v=torch.zeros_like(p))
                state["t"] += 1
                state["m"].mul_(0.9).add_(p.grad, alpha=0.1)
                state["v"].mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)
                size = group["lr"] * math.sqrt(1 - 0.999 ** state["t"]) / (1 - 0.9 ** state["t"])
                p.addcdiv_(state["m"], state["v"].sqrt().add_(1e-8), value=-size)
                p.add_(p, alpha=-group["lr"] * group["decay"])


@dataclass(frozen=True)
class Run:
    """An optimizer and a schedule in both dialects; `rate` is the factor after the warmup by the share that is done."""

    config: Callable[[], Any]
    optimizer: Callable[[Parameters], torch.optim.Optimizer]
    scheduler: Callable[[], Any]
    rate: Callable[[float], float]
    clip: bool = True


RUNS = {
    "sgd-constant": Run(
        lambda: optim.SGDConfig(lr=0.5), lambda p: torch.optim.SGD(p, lr=0.5),
        lambda: lr_scheduler.ConstantWarmupLRScheduler(STEPS, WARMUP), lambda done: 1.0, clip=False,
    ),
    "adam-cosine": Run(
        lambda: optim.AdamConfig(lr=5e-3), lambda p: torch.optim.Adam(p, lr=5e-3),
        lambda: lr_scheduler.CosineWarmupLRScheduler(STEPS, warmup=WARMUP),
        lambda done: 0.5 * (1 + math.cos(math.pi * done)),
    ),
    "adamw-linear": Run(
        lambda: optim.AdamConfig(lr=5e-3, lambda_coef=0.1), lambda p: torch.optim.AdamW(p, lr=5e-3, weight_decay=0.1),
        lambda: lr_scheduler.LinearWarmupLRScheduler(STEPS, WARMUP), lambda done: 1 - done,
    ),
    "adamw-after-poly": Run(
        lambda: optim.AdamConfig(
            lr=5e-3, lambda_coef=0.1, weight_decay_mode=optim.AdamConfig.DecayMode.AFTER_WEIGHT_UPDATE
        ),
        lambda p: DecayAfter(p, 5e-3, 0.1),
        lambda: lr_scheduler.PolyWarmupLRScheduler(STEPS, lr_end=5e-4, power=2.0, warmup=WARMUP),
        lambda done: 0.9 * (1 - done) ** 2 + 0.1,
    ),
    "lamb-poly": Run(
        lambda: optim.LambConfig(lr=0.02, lambda_coef=0.01, do_bias_correction=True),
        lambda p: Lamb(p, 0.02, (0.9, 0.999), 1e-6, 0.01),
        lambda: lr_scheduler.PolyWarmupLRScheduler(STEPS, lr_end=0.0, power=0.5, warmup=WARMUP),
        lambda done: math.sqrt(1 - done),
    ),
}  # fmt: skip


def fresh() -> tuple[nn.Module, list[tuple[torch.Tensor, torch.Tensor]]]:
    """The model at its start and the batches: words that count up, now and then skipping one."""
    path = FOLDER.parents[1] / "recipes" / "getting_started" / "model.py"
    spec = importlib.util.spec_from_file_location("getting_started_twin", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    torch.manual_seed(21)
    model = module.TransformerModel(WORDS, 12, 2, 16, 1, 0.0).train()
    generator = torch.Generator().manual_seed(22)
    data = []
    for _ in range(STEPS):
        text = torch.randint(1, 3, (LENGTH + 1, BATCH), generator=generator).cumsum(0) % WORDS
        data.append((text[:-1], text[1:].reshape(-1)))
    return model, data


def loss_of(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output.view(-1, WORDS), label)


def eager(run: Run) -> list[float]:
    """The loss curve of eager PyTorch."""
    model, data = fresh()
    optimizer = run.optimizer(model.parameters())
    base = optimizer.param_groups[0]["lr"]
    warm = WARMUP * STEPS
    curve = []
    for step, (text, label) in enumerate(data):
        factor = step / warm if step < warm else run.rate((step - warm) / (STEPS - warm))
        optimizer.param_groups[0]["lr"] = base * factor
        loss = loss_of(model(text), label)
        optimizer.zero_grad()
        loss.backward()
        if run.clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        curve.append(float(loss.detach()))
    return curve


if __name__ == "__main__":
    for name, run in RUNS.items():
        rows = [round(loss, 6) for loss in eager(run)]
        (FOLDER / f"optimizer-{name}.json").write_text(json.dumps({"torch": torch.__version__, "loss": rows}) + "\n")
