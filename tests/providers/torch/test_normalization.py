"""Layer normalisation of large values, which is done in pieces: to the last bit what PyTorch does at once."""

from __future__ import annotations

import copy

import torch
from torch import nn

from ontrain.training.ortmodule import ORTModule


def test_large_layers_are_normalised_in_pieces_and_equal_eager_to_the_bit():
    plain = nn.LayerNorm(512)
    nn.init.normal_(plain.weight)
    nn.init.normal_(plain.bias)
    wrapped = ORTModule(copy.deepcopy(plain))
    x, weights = torch.randn(3, 501, 512), torch.randn(3, 501, 512)
    found = []
    for model in (plain, wrapped):
        given = x.clone().requires_grad_()
        y = model(given)
        (y * weights).sum().backward()
        found.append([y.detach(), given.grad, model.weight.grad, model.bias.grad])
    for ours, eager in zip(found[1], found[0], strict=True):
        assert torch.equal(ours, eager)
    (entry,) = wrapped._engine.entries
    programs = [plan.executable for plan in entry.session._plans.values()]
    calls = [one.fn for p in programs for one in p.forward_code.program if one.fn is torch.native_layer_norm]
    assert len(calls) == 3, "3 MB in pieces of one"
