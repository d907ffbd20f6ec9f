"""Spiking neurons of norse and spikingjelly, and layers that scan a sequence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.capture.packages.entry import Batch, Loss, add, numbers, unevenly
from tests.capture.packages.extras import imported

__all__: list[str] = []

_JELLY = "spikingjelly.activation_based"


def steps(n: int) -> Batch:
    """Rows of six steps, strong enough for a spike."""
    return (3 * numbers(n, 6, 4),)


def of_norse(name: str, **settings: Any) -> Callable[[], nn.Module]:
    """Neurons of norse, step by step behind a layer."""

    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        state, results = None, []
        for step in x.unbind(1):
            y, state = s.neurons(s.layer(step), state)
            results.append(y)
        return unevenly(torch.stack(results, 1))

    return lambda: Loss(forward, layer=nn.Linear(4, 4), neurons=imported(f"norse.torch.{name}")(**settings))


def of_spikingjelly(name: str) -> Callable[[], nn.Module]:
    """Neurons of spikingjelly, which keep their potential from step to step and are reset first."""

    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        imported(f"{_JELLY}.functional.reset_net")(s)
        return unevenly(torch.stack([s.neurons(s.layer(step)) for step in x.unbind(1)], 1))

    return lambda: Loss(forward, layer=nn.Linear(4, 4), neurons=imported(f"{_JELLY}.neuron.{name}")())


for cell in ("LIFCell", "LICell", "LSNNCell", "LIFAdExCell", "IAFCell", "LIFRefracCell"):
    add(f"{cell} of norse", "norse", of_norse(cell), steps)
# Without a neuron's weight for itself it has a hook on the gradient, which a copy of a module lacks.
add(
    "LIFRecurrentCell of norse",
    "norse",
    of_norse("LIFRecurrentCell", input_size=4, hidden_size=5, autapses=True),
    steps,
)
for node in ("LIFNode", "IFNode", "ParametricLIFNode", "QIFNode", "EIFNode", "IzhikevichNode"):
    add(f"{node} of spikingjelly", "spikingjelly", of_spikingjelly(node), steps)
add("S5", "S5-pytorch", lambda: Loss(model=imported("s5.S5")(8, 8)), lambda n: (numbers(n, 6, 8),), "s5")
