"""`int(…)` and `float(…)` in forward are eager PyTorch's, and vary from step to step."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from ontrain.training.ortmodule import ORTModule

VARYING = {
    "a filled row": lambda y: y * torch.full((y.shape[1],), float(y.shape[1]), dtype=y.dtype)[:, None],
    "a float of a size": lambda y: y * float(len(y[0])),
    "a tensor of a float": lambda y: y * torch.tensor([float(y.shape[1]), 2.0], dtype=y.dtype)[0],
    "a range of floats": lambda y: y * torch.arange(float(y.shape[1]), dtype=y.dtype)[:, None],
    "a float of a float": lambda y: y * float(y.shape[1] / 3),
    "a float of a tensor": lambda y: y * float(y.detach().abs().max()),
    "a float of a truth value": lambda y: y * (1.0 + float((y.detach().abs().max() < 1e9).sum())),
    "a whole number of a tensor": lambda y: y * int(10 * y.detach().abs().max()),
    "an instance": lambda y: y * (2.0 if isinstance(float(y.shape[1]), float | None) else 3.0),
    "a type": lambda y: y * (2.0 if type(float(y.shape[1])) is float else 3.0),
    "a type as a key": lambda y: y * {int: 2.0, float: 3.0}[type(float(y.shape[1]))],
    "no number": lambda y: y * float("3.5") * float(2) * 0.0,
    "a dtype": lambda y: y * torch.ones(1, dtype=float) * torch.zeros(1).to(float).cos(),
}


class Scaled(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.layer, self.function = nn.Linear(4, 4, dtype=torch.float64), function
        self.largest = 0.0

    def forward(self, x):
        return self.function(self.layer(x)).square().sum()


def assert_eager(eager, ours):
    for length in (5, 8, 2):
        x = torch.randn(3, length, 4, dtype=torch.float64)
        for module in (ours, eager):
            module.zero_grad()
            module(x).backward()
        torch.testing.assert_close(ours.module.layer.weight.grad, eager.layer.weight.grad, rtol=1e-12, atol=0.0)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", VARYING)
def test_numbers_vary(name):
    eager = Scaled(VARYING[name])
    ours = ORTModule(copy.deepcopy(eager))
    assert_eager(eager, ours)
    assert ours._engine.captures == 1


def test_a_text_of_a_float_is_that_of_its_number():
    eager = Scaled(lambda y: y * {"5.00": 2.0, "8.00": 3.0, "2.00": 5.0}[f"{float(y.shape[1]):.2f}"])
    assert_eager(eager, ORTModule(copy.deepcopy(eager)))


class Watched(Scaled):
    """Hands out numbers that it reads off its tensors."""

    def __init__(self):
        super().__init__(None)
        self.positive = 0

    def forward(self, x):
        y = self.layer(x)
        self.largest = float(y.detach().max())
        self.positive = int((y > 0).sum())
        loss = y.square().sum()
        return loss, {"loss": loss.item(), "rows": [y.detach().mean(-1)[0, 0].item()]}


def test_numbers_of_each_step_are_returned_and_written():
    eager = Watched()
    ours = ORTModule(copy.deepcopy(eager))
    for length in (5, 8, 2):
        x = torch.randn(3, length, 4, dtype=torch.float64)
        results = [module(x) for module in (ours, eager)]
        for loss, _ in results:
            loss.backward()
        numbers = [numbers for _, numbers in results]
        assert isinstance(numbers[0]["loss"], float)
        assert numbers[0]["loss"] == pytest.approx(numbers[1]["loss"], rel=1e-14)
        assert numbers[0]["rows"] == pytest.approx(numbers[1]["rows"], rel=1e-12)
        assert ours.module.largest == pytest.approx(eager.largest, rel=1e-14)
        assert isinstance(ours.module.positive, int)
        assert ours.module.positive == eager.positive
    assert ours._engine.captures == 1
    torch.testing.assert_close(ours.module.layer.weight.grad, eager.layer.weight.grad)
