"""Where a graph has a constant, a number that varies is captured for each of its values."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from ontrain.errors import OntrainError
from ontrain.training.ortmodule import ORTModule
from ontrain.training.orttrainer import ORTTrainer

WHOLE, FRACTION = (2, 3, 1), (1.5, 2.0, 0.5)
CASES = {
    "which of the smallest": (lambda y, k: y.kthvalue(k.item(), dim=1).values, WHOLE, 3),
    "a norm": (lambda y, k: y.norm(k.item(), dim=-1), FRACTION, 3),
    "a normalised row": (lambda y, k: functional.normalize(y, p=k.item(), dim=-1) ** 3, FRACTION, 3),
    "a norm of a share": (lambda y, k: torch.linalg.vector_norm(y, 1.0 + 1.0 / y.shape[1], dim=-1), FRACTION, 3),
    "a slope": (lambda y, k: functional.leaky_relu(y, k.item()), FRACTION, 1),
    "an exponential unit": (lambda y, k: functional.elu(y, k.item()), FRACTION, 1),
    "the greatest few": (lambda y, k: y.topk(k.item(), dim=1).values, WHOLE, 1),
    "limits": (lambda y, k: y.clamp(-k.item() / 3, k.item()), FRACTION, 1),
    "a weight of a sum": (lambda y, k: torch.add(y, y.sin(), alpha=k.item()), FRACTION, 1),
}


class Numbered(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.layer, self.function = nn.Linear(4, 4, dtype=torch.float64), function

    def forward(self, x, number):
        y = self.function(self.layer(x), number)
        return (y * torch.arange(1, 1 + y.shape[-1])).sum()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CASES)
def test_each_number_is_eagers(name):
    function, values, captures = CASES[name]
    eager = Numbered(function)
    ours = ORTModule(copy.deepcopy(eager))
    for length, value in zip((4, 6, 5), values, strict=True):
        x, number = torch.randn(3, length, 4, dtype=torch.float64), torch.tensor(value)
        losses = []
        for module in (ours, eager):
            module.zero_grad()
            losses.append(module(x, number))
            losses[-1].backward()
        torch.testing.assert_close(*losses)
        torch.testing.assert_close(ours.module.layer.weight.grad, eager.layer.weight.grad)
    assert ours._engine.captures <= captures


def test_a_norm_without_end_is_that_of_the_largest():
    eager = Numbered(lambda y, p: y.norm(p.item(), dim=-1))
    ours = ORTModule(copy.deepcopy(eager))
    x = torch.randn(3, 5, 4, dtype=torch.float64)
    for p in (1.5, float("inf"), float("-inf"), 0.0, 2.0):
        torch.testing.assert_close(ours(x, torch.tensor(p)), eager(x, torch.tensor(p)))


def test_a_trainer_says_what_does_not_fit():
    module = Numbered(lambda y, k: y.kthvalue(k.item(), dim=1).values)
    description = {"inputs": [("x", [3, 5, 4]), ("number", [])], "outputs": [("loss", [], True)]}
    from ontrain.training import optim

    trainer = ORTTrainer(module, description, optim.AdamConfig(), options={"device": {"id": "cpu"}})
    with pytest.raises(OntrainError, match="kthvalue"):
        trainer.train_step(torch.randn(3, 5, 4, dtype=torch.float64), torch.tensor(2))
