"""Operators of torch.library.custom_op: a graph holds their code, and their registered backward."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from ontrain.errors import CaptureError
from ontrain.training.ortmodule import ORTModule


@torch.library.custom_op("ontrain_tests::scaled", mutates_args=())
def scaled(x: torch.Tensor, factor: float, offset: float = 0.5) -> torch.Tensor:
    return x * factor + offset


@scaled.register_fake
def _(x, factor, offset=0.5):
    return torch.empty_like(x)


def _keep_factor(ctx, inputs, output):
    ctx.factor = inputs[1]


scaled.register_autograd(lambda context, dy: (3 * dy * context.factor, None, None), setup_context=_keep_factor)


@torch.library.custom_op("ontrain_tests::ordered", mutates_args=())
def ordered(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    values, places = x.sort(-1)
    return values.clone(), places


@ordered.register_fake
def _(x):
    return torch.empty_like(x), torch.empty_like(x, dtype=torch.int64)


def _keep_places(ctx, inputs, output):
    ctx.save_for_backward(output[1])


ordered.register_autograd(
    lambda context, dy, _: torch.zeros_like(dy).scatter(-1, context.saved_tensors[0], dy), setup_context=_keep_places
)


@torch.library.custom_op("ontrain_tests::bump", mutates_args={"x"})
def bump(x: torch.Tensor) -> None:
    x.add_(1)


@torch.library.custom_op("ontrain_tests::of_numpy", mutates_args=())
def of_numpy(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(x.numpy().copy())


@of_numpy.register_fake
def _(x):
    return torch.empty_like(x)


class Applied(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function, self.layer = function, nn.Linear(4, 3)

    def forward(self, x):
        return self.function(self.layer(x)).square().mean()


def _bumped(y):
    copied = y.detach().clone()
    bump(copied)
    return y * copied


FUNCTIONS = {
    "called by its definition": lambda y: scaled(y, 2.0),
    "called by its name": lambda y: torch.ops.ontrain_tests.scaled(y, 2.0, offset=1.0),
    "called by its overload": lambda y: torch.ops.ontrain_tests.scaled.default(y, factor=2.0),
    "with a result that has no gradient": lambda y: (lambda values, places: values * places)(*ordered(y)),
    "that writes to its argument": _bumped,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_operator_has_its_code_and_its_own_backward(name):
    eager = Applied(FUNCTIONS[name]).double()
    ours = ORTModule(copy.deepcopy(eager))
    for rows in (2, 3, 2):
        x = torch.randn(rows, 4, dtype=torch.float64)
        results = []
        for module in (ours, eager):
            module.zero_grad()
            loss = module(x)
            loss.backward()
            results.append([loss.detach(), *(p.grad for p in module.parameters())])
        for mine, theirs in zip(*results, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)


def test_an_operator_whose_code_needs_values_is_refused_with_its_line():
    with pytest.raises(CaptureError, match="numpy") as refusal:
        ORTModule(Applied(lambda y: y * of_numpy(y.detach())))(torch.randn(2, 4))
    assert "x.numpy().copy()" in str(refusal.value)
