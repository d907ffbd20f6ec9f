"""A list with tensors in it: torch.tensor has eager's values, dtype and shape, and no gradient; it is an index, too."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from ontrain.training.ortmodule import ORTModule

CASES = {
    "largest and smallest": lambda y, ids: torch.tensor([y.max(), y.min()]),
    "rows of a matrix": lambda y, ids: torch.tensor([[y.max(), y.min()], (y.sum(), 2.5)]),
    "whole numbers": lambda y, ids: torch.tensor([ids.max() + 1 - len(ids), ids.min(), 3]).unsqueeze(1),
    "whole numbers and others": lambda y, ids: torch.tensor([ids.max(), True, 2.5]),
    "sizes": lambda y, ids: torch.tensor([ids.max(), ids.shape[0]], device=ids.device),
    "a dtype": lambda y, ids: torch.tensor([ids.max(), 2], dtype=torch.float64),
    "vectors of one": lambda y, ids: torch.tensor([y[0, :1], y[1, 1:2], 3.0]),
    "as_tensor": lambda y, ids: torch.as_tensor([y.max(), y.min()]),
    "new_tensor": lambda y, ids: y.new_tensor([ids.max(), 2]),
    "numbers alone": lambda y, ids: y.new_tensor([ids.shape[0], 2]) + torch.as_tensor([1, 2]),
}

INDICES = {
    "two lists": lambda y, ids: y[[ids[0], ids[1]], [0, 1]],
    "a tuple of rows": lambda y, ids: y[(ids[0], ids[1]), 1],
    "columns": lambda y, ids: y[:, [ids[0] % 2, 1]],
    "sizes": lambda y, ids: y[[0, y.shape[0] - 1], 1],
    "numbers alone": lambda y, ids: y[[0, 2], 1].sum() + y[:, []].sum() + y[:, [True, False]],
    "written": lambda y, ids: _written(y * 1, [ids[0], ids[1]], (0, ids[2] % 2)),
}


def _written(y, rows, columns):
    y[rows, columns] = 0.5
    return y


class Made(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.layer, self.function = nn.Linear(3, 2, dtype=torch.float64), function

    def forward(self, x, ids):
        y = self.layer(x)
        numbers = self.function(y, ids)
        return (y.mean() * numbers).square().sum(), numbers


@pytest.mark.sampled(3)
@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")
@pytest.mark.parametrize("name", CASES)
def test_items_keep_their_values(name):
    eager = Made(CASES[name])
    ours = ORTModule(copy.deepcopy(eager))
    for count in (4, 6, 3):
        batch = torch.randn(count, 3, dtype=torch.float64), torch.randint(9, (count,))
        results = [module(*batch) for module in (ours, eager)]
        torch.testing.assert_close(*results)
        assert not results[0][1].requires_grad
        for module, (loss, _) in zip((ours, eager), results, strict=True):
            module.zero_grad()
            loss.backward()
        torch.testing.assert_close(ours.module.layer.weight.grad, eager.layer.weight.grad)
    assert ours._engine.captures == 1


class Chosen(Made):
    def forward(self, x, ids):
        return self.function(self.layer(x), ids).sin().sum()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", INDICES)
def test_a_list_of_tensors_is_an_index(name):
    eager = Chosen(INDICES[name])
    ours = ORTModule(copy.deepcopy(eager))
    for count in (4, 6, 3):
        batch = torch.randn(count, 3, dtype=torch.float64), torch.randint(count, (count,))
        losses = [module(*batch) for module in (ours, eager)]
        torch.testing.assert_close(*losses)
        for module, loss in zip((ours, eager), losses, strict=True):
            module.zero_grad()
            loss.backward()
        torch.testing.assert_close(ours.module.layer.weight.grad, eager.layer.weight.grad)
    assert ours._engine.captures == 1
