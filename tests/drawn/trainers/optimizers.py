"""SGD, Adam and LAMB written out, and what of their settings is drawn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ontrain.training import optim
from tests.drawn.draw import Draw

__all__ = ["Oracle", "Settings", "draw_settings"]

State = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """A drawn optimizer.

    Attributes:
        name: "sgd", "adam" or "lamb".
        rate: of learning.
        options: as its configuration takes them.
        groups: of parameters, with options of their own.
        clip: the largest norm of all gradients together.
    """

    name: str
    rate: float
    options: Mapping[str, Any]
    groups: Sequence[Mapping[str, Any]] = ()
    clip: float | None = None

    def config(self) -> Any:
        """A configuration for ORTTrainer."""
        options = dict(self.options)
        if self.name == "sgd":
            return optim.SGDConfig(lr=self.rate, **options)
        if self.name == "adam":
            options["weight_decay_mode"] = optim.AdamConfig.DecayMode(options["weight_decay_mode"])
        config = optim.AdamConfig if self.name == "adam" else optim.LambConfig
        return config(params=[dict(group) for group in self.groups], lr=self.rate, **options)

    def options_of(self, parameter: str) -> dict[str, Any]:
        """The options of a parameter."""
        options = dict(self.options)
        for group in self.groups:
            if parameter in group["params"]:
                options.update(group)
        return options


def draw_settings(draw: Draw, parameters: Sequence[str]) -> Settings:
    """An optimizer for these parameters."""
    name, rate = draw.choice(["sgd", "adam", "adam", "lamb"]), draw.choice([1e-2, 1e-3])
    if name == "sgd":
        momentum = draw.choice([0.0, 0.9, 0.5])
        nesterov = bool(momentum) and draw.flag()
        return Settings(name, rate, dict(momentum=momentum, nesterov=nesterov, weight_decay=draw.choice([0.0, 0.1])))
    options: dict[str, Any] = dict(
        alpha=draw.choice([0.9, 0.8, 0.0]), beta=draw.choice([0.999, 0.9]), lambda_coef=draw.choice([0.0, 0.1, 0.01]),
        epsilon=draw.choice([1e-8, 1e-3]), do_bias_correction=draw.flag(),
    )  # fmt: skip
    if name == "adam":
        options["weight_decay_mode"] = draw.choice([0, 1])
    else:
        bounds = draw.choice([(-math.inf, math.inf), (0.1, 2.0), (0.0, 0.5)])
        options["ratio_min"], options["ratio_max"] = bounds
    groups = [_group(draw, parameters)] if draw.flag() else []
    return Settings(name, rate, options, groups, draw.choice([None, None, 0.05, 10.0]))


def _group(draw: Draw, parameters: Sequence[str]) -> dict[str, Any]:
    """Three parameters with another decay, and perhaps other means and another epsilon."""
    members = draw.sample(parameters, min(3, len(parameters)))
    group: dict[str, Any] = dict(params=members, lambda_coef=draw.choice([0.0, 0.3]))
    if draw.flag():
        group.update(alpha=0.7, beta=0.95)
    if draw.flag():
        group.update(epsilon=1e-2)
    return group


class Oracle:
    """Updates parameters by their gradients, as the optimizer's definition says."""

    def __init__(self, settings: Settings, parameters: Mapping[str, torch.nn.Parameter]) -> None:
        self._settings, self._parameters = settings, parameters
        self._states: dict[str, State] = {name: {} for name in parameters}
        self._updates = 0

    @torch.no_grad()
    def update(self, factor: float) -> None:
        """Clip and update at `factor` times the rate; a parameter without gradient stays."""
        self._updates += 1
        gradients = {name: p.grad for name, p in self._parameters.items() if p.grad is not None}
        scale = self._scale(gradients.values())
        rule = {"sgd": self._sgd, "adam": self._adam, "lamb": self._lamb}[self._settings.name]
        for name, gradient in gradients.items():
            options = self._settings.options_of(name)
            rule(self._parameters[name], gradient * scale, options, self._states[name], self._settings.rate * factor)

    def _scale(self, gradients: Any) -> float:
        """What the norm of all gradients is clipped by."""
        norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients))
        return min(1.0, self._settings.clip / (norm + 1e-6)) if self._settings.clip else 1.0

    def _sgd(self, p: torch.Tensor, gradient: torch.Tensor, options: State, state: State, rate: float) -> None:
        """The momentum begins with the first gradient, as torch.optim.SGD's does."""
        gradient = gradient + options["weight_decay"] * p
        if options["momentum"]:
            before = state.get("momentum")
            state["momentum"] = gradient if before is None else options["momentum"] * before + gradient
            ahead = gradient + options["momentum"] * state["momentum"]
            gradient = ahead if options["nesterov"] else state["momentum"]
        p -= rate * gradient

    def _moments(self, gradient: torch.Tensor, options: State, state: State) -> tuple[torch.Tensor, ...]:
        """Running means of gradients and of squares, and what corrects their bias."""
        alpha, beta = options["alpha"], options["beta"]
        state["first"] = alpha * state.get("first", 0) + (1 - alpha) * gradient
        state["second"] = beta * state.get("second", 0) + (1 - beta) * gradient.square()
        corrects = options["do_bias_correction"]
        corrections = (1 - alpha**self._updates, 1 - beta**self._updates) if corrects else (1.0, 1.0)
        return state["first"], state["second"], *corrections

    def _adam(self, p: torch.Tensor, gradient: torch.Tensor, options: State, state: State, rate: float) -> None:
        """Decay before the update as PyTorch has it, or after it as transformers had it."""
        first, second, c1, c2 = self._moments(gradient, options, state)
        if options["weight_decay_mode"] == 0:
            p *= 1 - rate * options["lambda_coef"]
            p -= rate * (first / c1) / ((second / c2).sqrt() + options["epsilon"])
        else:
            p -= rate * math.sqrt(c2) / c1 * first / (second.sqrt() + options["epsilon"])
            p -= rate * options["lambda_coef"] * p

    def _lamb(self, p: torch.Tensor, gradient: torch.Tensor, options: State, state: State, rate: float) -> None:
        """The rate is weighed by the norms of the parameter and of its update."""
        first, second, c1, c2 = self._moments(gradient, options, state)
        step = (first / c1) / ((second / c2).sqrt() + options["epsilon"]) + options["lambda_coef"] * p
        norms = float(p.norm()), float(step.norm())
        ratio = min(max(norms[0] / norms[1], options["ratio_min"]), options["ratio_max"]) if all(norms) else 1.0
        p -= rate * ratio * step
