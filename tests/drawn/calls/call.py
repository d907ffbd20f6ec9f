"""A drawn call of PyTorch, through ORTModule beside eager in float64: value, gradients and buffers of three calls."""

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

__all__ = ["Call", "call", "judge_call"]

call = Families()
"""Families of calls: a function of a draw that returns a Call."""

VALUE, GRADIENT, BUFFER = Tolerance(1e-8, 1e-9), Tolerance(1e-7, 1e-8), Tolerance(1e-7, 1e-9)
Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Call:
    """A function with its arguments.

    Attributes:
        text: what was drawn, for people.
        function: of the inputs, or of the module and the inputs; it returns a tensor.
        inputs: draws a batch, of another size each time; the first one gets a gradient.
        module: what has parameters or buffers.
    """

    text: str
    function: Callable[..., torch.Tensor]
    inputs: Callable[[], torch.Tensor | Sequence[torch.Tensor]]
    module: nn.Module | None = None


class Applied(nn.Module):
    """The call, behind a weight."""

    def __init__(self, drawn: Call) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(1.3))
        self.module, self.function = drawn.module, drawn.function

    def forward(self, x: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        if self.module is None:
            return self.function(x * self.weight, *others)
        return self.function(self.module, x * self.weight, *others)


def judge_call(draw: Draw, family: str, drawn: list[str]) -> None:
    """Run a family's call at two sizes, and the first one again."""
    with draw.alone():
        with oracle():
            case: Call = call[family](draw)
            drawn.append(case.text)
            eager, batches = Applied(case), [_batch(case), _batch(case)]
        drawn.append(str([tuple(tensor.shape) for tensor in batches[0]]))
        ours = ORTModule(copy.deepcopy(eager))
        for batch in (*batches, batches[0]):
            with oracle():
                value, gradients = _value_and_gradients(eager, batch)
            actual, actual_gradients = _value_and_gradients(ours, batch)
            compare("value", value, actual, VALUE)
            compare_gradients(gradients, actual_gradients, GRADIENT)
            compare_buffers(eager, ours, BUFFER)


def _batch(case: Call) -> Tensors:
    inputs = case.inputs()
    first, *others = (inputs,) if isinstance(inputs, torch.Tensor) else inputs
    return (first.requires_grad_(), *others)


def _value_and_gradients(module: nn.Module, batch: Tensors) -> tuple[torch.Tensor, dict[str, Any]]:
    """The value, and the gradients of its elements' sum weighed from 0.5 to 1.5."""
    value = module(*batch)
    loss = (value * torch.linspace(0.5, 1.5, value.numel()).view(value.shape)).sum()
    wanted = {f"parameter {i}": p for i, p in enumerate(module.parameters())} | {"the first input": batch[0]}
    gradients = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True)
    return value.detach(), dict(zip(wanted, gradients, strict=True))
