"""Branches on numbers that forward draws: each is captured once, and taken when forward would take it."""

from __future__ import annotations

import copy
import random
from random import random as by_name

import numpy as np
import pytest
import torch
from torch import nn

from ontrain.capture import capture
from ontrain.capture.chances import GeneratorStates
from ontrain.errors import CaptureError
from ontrain.training.ortmodule import ORTModule

pytestmark = pytest.mark.sampled(4)


class Chancy(nn.Module):
    """Three layers, and what a choice makes of each."""

    def __init__(self, choose):
        super().__init__()
        self.layers, self.choose = nn.ModuleList(nn.Linear(3, 3) for _ in range(3)), choose
        self.scale = nn.Parameter(torch.ones(3))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        for layer in self.layers:
            x = self.choose(self, layer, x)
        return x * self.calls * self.scale


def by_thirds(module, layer, x):
    number = random.random()
    if number < 1 / 3:
        return x
    return layer(x).tanh() if np.float64(2 / 3) > number else x * 2


def drawn_and_not_asked(module, layer, x):
    number = random.uniform(0, 1)
    return layer(x) if module.training and number < 0.5 else x


def by_values_too(module, layer, x):
    if x.sum() > 0:
        return layer(x) if random.random() < 0.5 else x
    return layer(x).tanh()


CHOICES = {
    "random": lambda _, layer, x: x if random.random() < 0.5 else layer(x),
    "by thirds": by_thirds,
    "drawn and not asked": drawn_and_not_asked,
    "by values, too": by_values_too,
    "gauss": lambda _, layer, x: x if random.gauss(0, 1) > 0 else layer(x),
    "truth": lambda _, layer, x: layer(x) if random.random() else x,
    "randint": lambda _, layer, x: layer(x) * random.randint(1, 3),
    "randrange": lambda _, layer, x: layer(x) * random.randrange(1, 7, 2),
    "getrandbits": lambda _, layer, x: layer(x) if random.getrandbits(1) else x,
    "choice": lambda module, layer, x: random.choice(module.layers)(x) + layer(x),
    "choice of truth": lambda _, layer, x: layer(x) if random.choice([True, False]) else x,
    "rand": lambda _, layer, x: x if np.random.rand() < 0.5 else layer(x),
    "numpy's uniform": lambda _, layer, x: x if np.random.uniform(0, 2) <= np.float64(1) else layer(x),
    "numpy's number before it": lambda _, layer, x: x if np.float32(0.5) >= np.random.random() else layer(x),
    "numpy's randint": lambda module, layer, x: module.layers[np.random.randint(3)](x) + layer(x),
    "numpy's choice": lambda _, layer, x: layer(x) * float(np.random.choice([1.0, 3.0, 4.0], p=[0.2, 0.3, 0.5])),
    "binomial": lambda _, layer, x: layer(x) if np.random.binomial(1, 0.5) == 1 else x,
    "both": lambda _, layer, x: x if random.random() < 0.5 and np.random.rand() < 0.7 else layer(x),
    "torch's rand": lambda _, layer, x: x if torch.rand([]) < 0.5 else layer(x),
    "torch's number": lambda _, layer, x: x if torch.rand(1).item() < 0.5 else layer(x),
    "torch's element": lambda _, layer, x: x if torch.rand(1)[0] < 0.5 else layer(x),
    "torch's randint": lambda module, layer, x: module.layers[torch.randint(0, 3, (1,))](x) + layer(x),
    "torch's coin": lambda _, layer, x: x if torch.randint(2, (1,)).item() else layer(x),
}


def seed(number):
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


def stepped(module, x):
    """The result, the gradients and the buffer of a step."""
    module.zero_grad()
    y = module(x)
    (y * torch.arange(1.0, 4)).sum().backward()
    return y, [parameter.grad for parameter in module.parameters()], module.calls.clone()


@pytest.mark.sampled(8)
@pytest.mark.parametrize("kind", CHOICES)
def test_each_call_takes_the_branch_that_eager_takes_and_moves_the_generators_as_eager(kind):
    torch.manual_seed(0)
    plain = Chancy(CHOICES[kind])
    module = copy.deepcopy(plain)
    model = ORTModule(module)
    for number in range(4):
        x = torch.randn(2 + number % 2, 3)
        seed(number)
        expected = stepped(plain, x)
        states = GeneratorStates()
        seed(number)
        torch.testing.assert_close(stepped(model, x), expected)
        assert GeneratorStates().are(states)
    assert kind == "truth" or model._engine.captures > 1


def test_numbers_go_on_from_call_to_call():
    plain = Chancy(CHOICES["random"])
    model, x = ORTModule(copy.deepcopy(plain)), torch.randn(2, 3)
    seed(5)
    expected = [plain(x) for _ in range(12)]
    seed(5)
    torch.testing.assert_close([model(x) for _ in range(12)], expected)
    assert model._engine.captures <= 8


def doubled(x):
    return x + x


@pytest.mark.parametrize(
    "choose",
    [
        lambda _, layer, x: layer(x) * random.random(),
        lambda _, layer, x: doubled(layer(x)) * random.random(),
        lambda _, layer, x: layer(x) if by_name() < 0.5 else x,
        lambda _, layer, x: layer(x) if np.random.rand(2)[0] < 0.5 else x,
        lambda _, layer, x: layer(x) * random.randint(1, 1000),
        lambda _, layer, x: layer(x) if f"{random.random():.2f}" == "0.50" else x,
        lambda _, layer, x: layer(x) if random.random() < random.random() else x,
    ],
    ids=[
        "computed with", "behind a call", "imported by its name", "many", "of many values", "as a text", "two of them",
    ],
)  # fmt: skip
def test_what_is_no_comparison_is_refused_by_line_and_leaves_the_generators(choose):
    model = ORTModule(Chancy(choose))
    with pytest.raises(CaptureError, match=r"draws random numbers[\s\S]*test_chances\.py:\d+: lambda"):
        model(torch.randn(2, 3))
    before = GeneratorStates()
    with pytest.raises(CaptureError):
        model(torch.zeros(2, 3))
    assert GeneratorStates().are(before)


def test_a_seed_that_forward_sets_is_refused():
    def reseeded(_, layer, x):
        random.seed(3)
        return layer(x) if random.random() < 0.5 else x

    with pytest.raises(CaptureError, match="draws random numbers"):
        ORTModule(Chancy(reseeded))(torch.randn(2, 3))


def test_a_capture_for_no_caller_that_draws_refuses():
    with pytest.raises(CaptureError, match="train it with ORTModule"):
        capture(Chancy(CHOICES["random"]), (torch.randn(2, 3),))


class Growing(nn.Module):
    """Makes a buffer at its first call, before it draws."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("scale", torch.zeros(0))

    def forward(self, x):
        if self.scale.numel() == 0:
            self.scale = torch.ones(x.shape[1])
        return self.linear(x) * self.scale if random.random() < 0.5 else x * self.scale


def test_what_a_first_call_makes_costs_no_numbers():
    plain = Growing()
    model, x = ORTModule(copy.deepcopy(plain)), torch.randn(2, 3)
    seed(7)
    expected = [plain(x) for _ in range(6)]
    seed(7)
    torch.testing.assert_close([model(x) for _ in range(6)], expected)


def test_many_paths_are_told():
    model, x = ORTModule(Chancy(CHOICES["randint"])), torch.randn(2, 3)
    with pytest.warns(UserWarning, match=r"took 8 paths by random numbers.*test_chances"):
        for number in range(20):
            seed(number)
            model(x)
