"""Generators of Python's that a module holds draw anew in each call of a module that runs in pieces."""

from __future__ import annotations

import copy
import random

import pytest
import torch
from torch import nn

from ontrain.training.compiled.untraced import generators_of, untraced
from ontrain.training.ortmodule import ORTModule


class Drawing(nn.Module):
    """A module with generators of its own, and what a forward draws from them."""

    def __init__(self, draw):
        super().__init__()
        self.draw, self.one, self.other = draw, nn.Linear(4, 4), nn.Linear(4, 4)
        self.generator, self.held = random.Random(3), {"more": [random.Random(8)]}

    def forward(self, x):
        return self.draw(self, self.one(x)).square().mean()


DRAWS = {
    "branch": lambda m, y: m.other(y) if m.generator.random() < 0.5 else y.relu(),
    "numbers": lambda m, y: m.other(y) * m.generator.random() + m.generator.uniform(1, 2),
    "choice": lambda m, y: m.generator.choice([m.other, torch.tanh])(y) * m.generator.randint(1, 3),
    "sample": lambda m, y: m.other(y) * y[:, m.generator.sample(range(4), 4)],
    "held in a list": lambda m, y: m.other(y) if m.held["more"][0].random() < 0.5 else y,
}


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.sampled(2)
def test_a_generator_that_a_module_holds_draws_in_each_call(name):
    torch.manual_seed(0)
    eager = Drawing(DRAWS[name]).double()
    ours = ORTModule(copy.deepcopy(eager), breaks="allow")
    for rows in (2, 3, 2, 4, 3, 2, 2, 3):
        x = torch.randn(rows, 4, dtype=torch.float64)
        losses = []
        for module in (ours, eager):
            module.zero_grad()
            losses.append(module(x))
            losses[-1].backward()
        torch.testing.assert_close(*losses)
        for (_, a), (_, b) in zip(ours.module.named_parameters(), eager.named_parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad)
    assert ours.module.generator.getstate() == eager.generator.getstate()
    assert type(ours.module.generator) is random.Random


def test_the_last_of_several_calls_gives_a_generator_its_class_back():
    module = Drawing(DRAWS["branch"])
    generators = generators_of(module)
    assert {id(module.generator), id(module.held["more"][0])} <= {id(generator) for generator in generators}
    first, second = untraced(generators), untraced(generators)
    first.__enter__()
    assert generators_of(module) == generators
    second.__enter__()
    first.__exit__(None, None, None)
    assert type(module.generator) is not random.Random
    second.__exit__(None, None, None)
    assert type(module.generator) is random.Random
