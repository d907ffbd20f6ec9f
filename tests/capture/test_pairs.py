"""Pairs, triples and triangles of places train as in eager PyTorch, by one capture for all numbers of rows."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from ontrain.training import ORTTrainer, optim
from ontrain.training.ortmodule import ORTModule

OFFSETS = (-9, -2, 0, 1, 9)
CASES = {
    **{f"combinations of {r}": lambda x, r=r: torch.combinations(x[:, 0], r) for r in (1, 2, 3, 4)},
    "combinations with repeats": lambda x: torch.combinations(x[:, 0], 3, with_replacement=True),
    "combinations of a constant": lambda x: x[torch.combinations(torch.arange(x.shape[0]))].prod(1),
    "combinations of what has a known size": lambda x: torch.combinations(x[0] * x[1]),
    **{f"distances of order {p}": lambda x, p=p: nn.functional.pdist(x, p) for p in (0, 1, 1.5, 2, float("inf"))},
    **{f"upper triangle from {k}": lambda x, k=k: x[_upper(x, k)] for k in OFFSETS},
    **{f"lower triangle to {k}": lambda x, k=k: x[_lower(x, k)] for k in OFFSETS},
    "triangle of a wide matrix": lambda x: x[torch.triu_indices(row=3, col=x.shape[0], offset=2)[1]],
    "pairs of a matrix": lambda x: (x @ x.T)[tuple(torch.triu_indices(len(x), len(x), 1))],
}


def _upper(x, offset):
    return torch.triu_indices(x.shape[0], x.shape[0], offset).sum(0) % x.shape[0]


def _lower(x, offset):
    return torch.tril_indices(x.shape[0], 2 * x.shape[0], offset).sum(0) % x.shape[0]


class Weighed(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.layer, self.function = nn.Linear(4, 4, dtype=torch.float64), function

    def forward(self, x):
        x = self.layer(x)
        y = self.function(x).sin()
        return (y * torch.arange(1.0, 1 + y.numel(), dtype=y.dtype).reshape(y.shape)).sum() + x.sum()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_eagers(name):
    eager = Weighed(CASES[name])
    ours = ORTModule(copy.deepcopy(eager))
    for count in (7, 9, 6):
        x = torch.randn(count, 4, dtype=torch.float64)
        losses = [module(x) for module in (ours, eager)]
        torch.testing.assert_close(*losses)
        for module, loss in zip((ours, eager), losses, strict=True):
            module.zero_grad()
            loss.backward()
        torch.testing.assert_close(ours.module.layer.weight.grad, eager.layer.weight.grad, rtol=1e-9, atol=1e-9)
    assert ours._engine.captures == 1


@pytest.mark.parametrize("r", [2, 3])
def test_of_too_few_there_is_no_combination(r):
    eager = Weighed(lambda x: torch.combinations(x[:, 0], r))
    ours = ORTModule(copy.deepcopy(eager))
    for count in (5, 1, 2, 3):
        x = torch.randn(count, 4, dtype=torch.float64)
        torch.testing.assert_close(ours(x), eager(x))


def test_a_trainer_knows_the_number_of_pairs():
    module = Weighed(lambda x: torch.combinations(x[:, 0]).prod(1))
    eager = copy.deepcopy(module)
    description = {"inputs": [("x", ["batch", 4])], "outputs": [("loss", [], True)]}
    trainer = ORTTrainer(module, description, optim.SGDConfig(lr=0.0))
    for count in (5, 8):
        x = torch.randn(count, 4, dtype=torch.float64)
        torch.testing.assert_close(trainer.train_step(x), eager(x).detach())
