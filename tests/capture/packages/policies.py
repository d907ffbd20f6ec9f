"""Policies of stable-baselines3, and networks and distributions of torchrl."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.capture.packages.entry import Batch, Loss, add, ids, image, numbers

__all__: list[str] = []

_BASELINES = ("stable_baselines3", "gymnasium")


def actor_critic(*sizes: int, **settings: Any) -> Callable[[], nn.Module]:
    """An actor and a critic of stable-baselines3 behind its preparation of observations, which is in single precision.

    Args:
        sizes: numbers of choices in each place of an action; three numbers if there are none.
        settings: of the policy.
    """

    def make() -> nn.Module:
        import gymnasium
        import numpy as np
        from stable_baselines3.common.policies import ActorCriticPolicy

        def forward(s: Any, x: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
            actor, critic = s.model.mlp_extractor(x)
            chances = s.model._get_action_dist_from_latent(actor)
            loss: torch.Tensor = s.model.value_net(critic).pow(2).mean() - chances.log_prob(action).mean()
            return loss - 0.01 * chances.entropy().mean()

        spaces = gymnasium.spaces
        actions = spaces.MultiDiscrete(list(sizes)) if sizes else spaces.Box(-1, 1, (3,), np.float32)
        observed = spaces.Box(-1, 1, (6,), np.float32)
        return Loss(forward, model=ActorCriticPolicy(observed, actions, lambda _: 1e-3, net_arch=[8], **settings))

    return make


def seen(n: int) -> Batch:
    """Observations and actions."""
    return numbers(2 * n, 6), numbers(2 * n, 3, seed=1)


add("actor and critic", "stable-baselines3", actor_critic(), seen, *_BASELINES)
add(
    "actor and critic by choices",
    "stable-baselines3",
    actor_critic(3, 2),
    lambda n: (numbers(2 * n, 6), ids(2, 2 * n, 2)),
    *_BASELINES,
)


def of_torchrl(name: str, *arguments: Any, **settings: Any) -> Callable[[], nn.Module]:
    """A network of torchrl by its name."""

    def make() -> nn.Module:
        import torchrl.modules

        return Loss(model=getattr(torchrl.modules, name)(*arguments, **settings))

    return make


_SMALL: dict[str, Any] = {"depth": 1, "num_cells": 8}
_AGENTS: dict[str, Any] = {"centralized": False, "share_params": False}
add("MLP of torchrl", "torchrl", of_torchrl("MLP", 6, 4, **_SMALL), lambda n: (numbers(2 * n, 6),))
add("ConvNet of torchrl", "torchrl", of_torchrl("ConvNet", 3, num_cells=[4, 4], kernel_sizes=3), image(size=16))
add("NoisyLinear of torchrl", "torchrl", of_torchrl("NoisyLinear", 6, 4, std_init=0.0), lambda n: (numbers(n, 6),))
add(
    "MultiAgentMLP",
    "torchrl",
    of_torchrl("MultiAgentMLP", 6, 4, 3, **_AGENTS, **_SMALL),
    lambda n: (numbers(2 * n, 3, 6),),
)
add("LSTM of torchrl", "torchrl", of_torchrl("LSTM", 6, 8, batch_first=True), lambda n: (numbers(n, 2 + n, 6),))
add("GRU of torchrl", "torchrl", of_torchrl("GRU", 6, 8, batch_first=True), lambda n: (numbers(n, 2 + n, 6),))
add(
    "QMixer",
    "torchrl",
    of_torchrl("QMixer", (4,), 8, 3, "cpu"),
    lambda n: (numbers(2 * n, 3, 1), numbers(2 * n, 4)),
)


def likelihood(name: str) -> Callable[[], nn.Module]:
    """Actions within bounds under a distribution of torchrl."""

    def make() -> nn.Module:
        import torchrl.modules

        def forward(s: Any, x: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
            mean, log_scale = s.model(x).chunk(2, -1)
            chances = getattr(torchrl.modules, name)(mean, log_scale.exp())
            return -chances.log_prob(action.tanh() * 0.9).mean()  # type: ignore[no-any-return]

        return Loss(forward, model=nn.Linear(6, 6))

    return make


add("TanhNormal", "torchrl", likelihood("TanhNormal"), seen)
add("TruncatedNormal", "torchrl", likelihood("TruncatedNormal"), seen)


def advantages() -> nn.Module:
    """The generalised advantages of a critic along steps."""
    from torchrl.objectives.value.functional import generalized_advantage_estimate

    def forward(s: Any, x: torch.Tensor, reward: torch.Tensor) -> torch.Tensor:
        value = s.model(x)
        done = torch.zeros_like(reward, dtype=torch.bool)
        y: torch.Tensor = generalized_advantage_estimate(0.9, 0.95, value[:, :-1], value[:, 1:], reward, done)[0]
        return y

    return Loss(forward, model=nn.Linear(6, 1))


add("generalised advantages", "torchrl", advantages, lambda n: (numbers(n, 6, 6), numbers(n, 5, 1)))
