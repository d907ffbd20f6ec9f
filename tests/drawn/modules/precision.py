"""A drawn module in another precision: under autocast, in bfloat16 or in float32, beside eager in the same.

Types are the same, and what ours is off by from float64 is of the order of what eager is off by, or of a few units of
the precision's last place.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ontrain.training.ortmodule import ORTModule
from tests.drawn.draw import Draw
from tests.drawn.judge import OracleFails, WrongResult, oracle
from tests.drawn.modules.module import Sample, sample, step

__all__ = ["WITHOUT", "judge_precision", "sample"]

WITHOUT = ("maximum_pool", "adaptive_pool", "unpooled")
"""Of equal numbers, as rounding makes them, another one may be the largest."""
TIMES = 8
"""How many times as far off as eager is still right."""


@dataclass(frozen=True)
class Precision:
    """How a module is run.

    Attributes:
        dtype: of weights and inputs.
        cast: what autocast casts to, or None.
    """

    dtype: torch.dtype
    cast: torch.dtype | None = None

    @property
    def unit(self) -> float:
        """Of the last place, beside 1."""
        return float(torch.finfo(self.cast or self.dtype).eps)

    def context(self) -> contextlib.AbstractContextManager[Any]:
        """What a forward runs in."""
        return torch.autocast("cpu", self.cast) if self.cast else contextlib.nullcontext()

    def of(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The tensors in this precision, each with a gradient if it is of floating point."""
        return [t.detach().to(self.dtype).requires_grad_() if t.is_floating_point() else t for t in tensors]


PRECISIONS = [
    Precision(torch.float32, torch.bfloat16), Precision(torch.float32, torch.bfloat16),
    Precision(torch.float32, torch.float16), Precision(torch.bfloat16), Precision(torch.float32),
]  # fmt: skip


class Cast(nn.Module):
    """A module that runs in a precision."""

    def __init__(self, module: nn.Module, precision: Precision) -> None:
        super().__init__()
        self.module, self.precision = module.to(precision.dtype), precision

    def forward(self, *inputs: torch.Tensor) -> Any:
        with self.precision.context():
            return self.module(*inputs)


def judge_precision(draw: Draw, family: str, drawn: list[str]) -> None:
    """Run a family's module in a drawn precision, with two batches and the first one again."""
    precision, inside = draw.choice(PRECISIONS), draw.flag()
    with draw.alone(), oracle():
        case: Sample = sample[family](draw)
        batches = [case.inputs() for _ in range(2)]
    drawn += [f"{precision} inside={inside} {case.text}", str([tuple(tensor.shape) for tensor in batches[0]])]
    with draw.alone(precision.dtype):
        exact = copy.deepcopy(case.module)
        eager = Cast(case.module, precision)
        wrapped = copy.deepcopy(eager) if inside else copy.deepcopy(eager.module)
        ours = ORTModule(wrapped)
        outside = contextlib.nullcontext if inside else precision.context
        for call, batch in enumerate((*batches, batches[0])):
            with oracle():
                expected = step(eager, precision.of(batch), True)
                with _default(torch.float64):
                    reference = step(exact, Precision(torch.float64).of(batch), True)
            with outside():
                actual = step(ours, precision.of(batch), True)
            _compare(call, reference, expected, actual, precision)


@contextlib.contextmanager
def _default(dtype: torch.dtype) -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


Results = tuple[list[torch.Tensor], dict[str, Any]]


def _compare(call: int, reference: Results, expected: Results, actual: Results, precision: Precision) -> None:
    """Outputs, and gradients by name.

    Raises:
        WrongResult: one is of another type, or too far off.
    """
    named = [{f"output {i}": output for i, output in enumerate(outputs)} | grads for outputs, grads in
             (reference, expected, actual)]  # fmt: skip
    for position, name in enumerate(named[0]):
        exact, eager, ours = (tensors[name] for tensors in named)
        if eager is None or exact is None:
            continue
        units = 6 if position < len(reference[0]) else 16
        _compare_tensor(f"{name} of call {call}", exact, eager, ours, units * precision.unit)


def _compare_tensor(
    what: str, exact: torch.Tensor, eager: torch.Tensor, ours: torch.Tensor | None, unit: float
) -> None:
    if ours is None:
        ours = torch.zeros_like(eager)
    if (ours.dtype, ours.shape) != (eager.dtype, eager.shape):
        raise WrongResult(f"{what} is {ours.dtype} {tuple(ours.shape)}, not {eager.dtype} {tuple(eager.shape)}")
    off, eagers = (float((tensor.double() - exact).norm()) for tensor in (ours, eager))
    if eagers != eagers:
        raise OracleFails("eager is not finite")
    size = float(exact.norm()) + 1e-3 * exact.numel() ** 0.5
    if not off <= TIMES * eagers + unit * size:
        raise WrongResult(f"{what} is off by {off:.3g} of {size:.3g}, eager by {eagers:.3g}")
