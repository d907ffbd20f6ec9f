"""Attributes that forward counts in have eager's values after each call, and so has what is computed with them."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from ontrain.training import ORTTrainer, optim
from tests.training.ortmodule.networks import assert_same_gradients, pair


class Counting(nn.Module):
    calls = 0

    def __init__(self):
        super().__init__()
        self.layer, self.steps, self.rate, self.seen = nn.Linear(4, 3), 0, 1.0, 0


class Only(Counting):
    def forward(self, x):
        self.steps += 1
        self.seen = self.seen + 2
        return self.layer(x)


class Inside(Counting):
    def __init__(self):
        super().__init__()
        self.inner = Only()

    def forward(self, x):
        if self.training:
            self.calls += 1
        return self.inner(x) + self.inner(x)


class Scaled(Counting):
    def forward(self, x):
        self.steps += 1
        return self.layer(x) * self.steps


class WarmUp(Counting):
    def forward(self, x):
        self.steps += 1
        y = self.layer(x)
        return y if self.steps > 2 else 0.5 * y


class Annealed(Counting):
    def forward(self, x):
        self.rate *= 0.5
        return self.layer(x) * self.rate


class ByName(Counting):
    def forward(self, x):
        self.steps += 1
        return self.layer(x) + getattr(self, "steps")  # noqa: B009 as code that is handed a name does


class Rows(Counting):
    def forward(self, x):
        self.steps += x.shape[0]
        self.seen = self.seen + len(x) * 2 - 1
        return self.layer(x)


class ScaledByRows(Counting):
    def forward(self, x):
        self.steps += x.shape[0]
        return self.layer(x) * self.steps


class Width(Counting):
    """Keeps a size for another line, which is set in each call."""

    def forward(self, x):
        self.calls = x.shape[0]
        return self.layer(x) * self.calls


def numbers(module):
    return [(part.steps, part.rate, part.seen, part.calls) for part in module.modules() if isinstance(part, Counting)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", [Only, Inside, Scaled, WarmUp, Annealed, ByName, Rows, ScaledByRows])
def test_attributes_and_results_are_eagers_after_each_call(kind):
    ours, eager = pair(kind())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for i, rows in enumerate((2, 2, 3, 2, 4)):
            x = torch.randn(rows, 4)
            for module in (ours, eager):
                module.train(i != 3)
            torch.testing.assert_close(ours(x), eager(x))
            for module in (ours, eager):
                module(x).sum().backward()
            assert numbers(ours.module) == numbers(eager), i
    assert_same_gradients(ours, eager)


@pytest.mark.parametrize("kind", [Only, Inside, Rows, Width])
def test_a_counter_that_nothing_reads_makes_no_new_capture(kind):
    ours, eager = pair(kind())
    ours(torch.randn(2, 4))
    ours(torch.randn(2, 4))  # the class's own number has become an attribute
    captures = ours._engine.captures
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for rows in range(2, 6):
            x = torch.randn(rows, 4)
            torch.testing.assert_close(ours(x), eager(x))
    assert ours._engine.captures == captures


def test_a_number_that_follows_from_values_is_that_of_each_call():
    class Marked(Counting):
        def forward(self, x):
            self.seen = int((x > 0).sum())
            return self.layer(x)

    ours, eager = pair(Marked())
    for rows in (2, 3, 5):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(ours(x), eager(x))
        assert ours.module.seen == eager.seen
    assert ours._engine.captures == 1


def test_a_counter_that_is_read_is_told_of_once():
    ours, _ = pair(Scaled())
    with pytest.warns(UserWarning, match="'steps' of Scaled from 0 to 1: each other value of it is captured anew"):
        ours(torch.randn(2, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours(torch.randn(2, 4))


@pytest.mark.parametrize("kind", [Only, Inside])
def test_the_trainer_tells_that_its_graph_keeps_a_number_that_nothing_computes_with(kind):
    class Loss(kind):
        def forward(self, x):
            return super().forward(x).sum()

    description = {"inputs": [("x", [2, 4])], "outputs": [("loss", [], True)]}
    trainer = ORTTrainer(Loss(), description, optim.SGDConfig(lr=0.1))
    with pytest.warns(UserWarning, match=r"'steps' of \w+ from 0 to [12]; a graph keeps the value"):
        trainer.train_step(torch.randn(2, 4))
