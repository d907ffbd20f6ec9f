"""A drawn module through ORTModule beside eager in float64: outputs, gradients and buffers of five calls.

Three batches of different sizes, in training and evaluation; updates in between change weights and running statistics.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ontrain.training.ortmodule import ORTModule
from tests.drawn.draw import Draw
from tests.drawn.families import Families
from tests.drawn.judge import Tolerance, compare, compare_buffers, compare_gradients, oracle

__all__ = ["Applied", "Sample", "flat", "judge_module", "sample", "weighed"]

sample = Families()
"""Families of modules: a function of a draw that returns a Sample."""

VALUE, GRADIENT, BUFFER = Tolerance(1e-8, 1e-9), Tolerance(1e-7, 1e-8), Tolerance(1e-7, 1e-9)
RATE = 1e-3
Tensors = Sequence[torch.Tensor]


@dataclass(frozen=True)
class Sample:
    """A module with what draws its batches.

    Attributes:
        text: what was drawn, for people.
        module: returns a tensor, or several in tuples and lists.
        inputs: draws a batch, of another size each time.
    """

    text: str
    module: nn.Module
    inputs: Callable[[], Tensors]


class Applied(nn.Module):
    """A function of layers and inputs."""

    def __init__(self, function: Callable[..., Any], *layers: nn.Module) -> None:
        super().__init__()
        self.function, self.layers = function, nn.ModuleList(layers)

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*self.layers, *inputs)


def judge_module(draw: Draw, family: str, drawn: list[str]) -> None:
    """Run a family's module."""
    with draw.alone():
        with oracle():
            case: Sample = sample[family](draw)
            drawn.append(case.text)
            eager, batches = case.module, [_with_gradients(case.inputs()) for _ in range(3)]
        drawn.append(str([tuple(tensor.shape) for tensor in batches[0]]))
        ours = ORTModule(copy.deepcopy(eager))
        for call, batch in enumerate((*batches, *batches[:2])):
            training, updates = draw.flag(0.8), draw.flag()
            with oracle():
                expected = step(eager, batch, training)
            actual = step(ours, batch, training)
            assert len(expected[0]) == len(actual[0])
            for position, (output, ours_output) in enumerate(zip(expected[0], actual[0], strict=True)):
                compare(f"output {position} of call {call}", output, ours_output, VALUE)
            compare_gradients(expected[1], actual[1], GRADIENT, absent_is_zero=True, what=f"gradient in call {call}")
            compare_buffers(eager, ours, BUFFER)
            if updates:
                _update(eager), _update(ours)


def _with_gradients(batch: Tensors) -> Tensors:
    return [tensor.requires_grad_() if tensor.is_floating_point() else tensor for tensor in batch]


def step(module: nn.Module, batch: Tensors, training: bool) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """Forward and backward: outputs and gradients by name."""
    module.train(training)
    module.zero_grad()
    outputs = flat(module(*batch))
    wanted = {f"parameter {i}": p for i, p in enumerate(module.parameters())}
    wanted |= {f"input {i}": tensor for i, tensor in enumerate(batch) if tensor.requires_grad}
    gradients = torch.autograd.grad(weighed(outputs), list(wanted.values()), allow_unused=True)
    for parameter, gradient in zip(module.parameters(), gradients, strict=False):
        parameter.grad = gradient
    return [output.detach() for output in outputs], dict(zip(wanted, gradients, strict=True))


def flat(returned: Any) -> list[torch.Tensor]:
    """The tensors of a result."""
    if isinstance(returned, torch.Tensor):
        return [returned]
    return [] if returned is None else [tensor for part in returned for tensor in flat(part)]


def weighed(outputs: Tensors) -> torch.Tensor:
    """The sum of all elements, in float64, each output's weighed from 0.5 to 1.5."""
    total = torch.zeros((), dtype=torch.float64)
    for output in outputs:
        if output.requires_grad:
            weights = torch.linspace(0.5, 1.5, output.numel(), dtype=torch.float64).view(output.shape)
            total = total + (output * weights).sum()
    return total


@torch.no_grad()
def _update(module: nn.Module) -> None:
    for parameter in module.parameters():
        if parameter.grad is not None:
            parameter -= RATE * parameter.grad
