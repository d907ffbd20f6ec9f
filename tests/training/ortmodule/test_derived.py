"""What torch's pruning and weight norm leave in an attribute is what eager's last forward left there."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import prune, weight_norm

from ontrain.training.ortmodule import ORTModule

REPARAMETERISED = {
    "pruned": lambda layer: prune.l1_unstructured(layer, "weight", 0.3),
    "pruned twice": lambda layer: prune.random_unstructured(prune.l1_unstructured(layer, "weight", 3), "weight", 3),
    "with a weight norm": weight_norm,
}


def trained(model, weights, x, *, steps):
    """Train by plain descent; return the losses."""
    optimizer, losses = torch.optim.SGD(weights, lr=0.1), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


@pytest.mark.parametrize("name", REPARAMETERISED)
@pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated")
def test_the_attribute_is_as_eager_leaves_it(name):
    eager = nn.Sequential(nn.Linear(6, 5), nn.Tanh())
    torch.manual_seed(1)
    REPARAMETERISED[name](eager[0])
    wrapped = nn.Sequential(nn.Linear(6, 5), nn.Tanh())
    torch.manual_seed(1)
    REPARAMETERISED[name](wrapped[0])
    wrapped.load_state_dict(eager.state_dict())
    x = torch.randn(4, 6)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        ours = ORTModule(wrapped)
        losses = trained(ours, wrapped.parameters(), x, steps=3)
    torch.testing.assert_close(losses, trained(eager, eager.parameters(), x, steps=3))
    torch.testing.assert_close(wrapped[0].weight, eager[0].weight)
    assert ours._engine.captures == 1


def test_a_second_pruning_ranks_the_weights_of_the_last_forward():
    eager = nn.Sequential(nn.Linear(6, 5), nn.Tanh())
    wrapped, x = copy.deepcopy(eager), torch.randn(4, 6)
    ours = ORTModule(wrapped)
    for model, layer in ((eager, eager[0]), (ours, wrapped[0])):
        for _ in range(3):
            prune.l1_unstructured(layer, "weight", 0.3)
            trained(model, model.parameters(), x, steps=4)
    torch.testing.assert_close(wrapped[0].weight_mask, eager[0].weight_mask, rtol=0, atol=0)
    torch.testing.assert_close(ours(x), eager(x))
