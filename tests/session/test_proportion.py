"""The time that a plan takes grows in proportion to the graph: twice the layers or steps, twice the calls."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

from ontrain.session.planner import Planner
from ontrain.training.ortmodule import ORTModule

FEW, MANY = 6, 36


class Layers(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.LayerNorm(8)) for _ in range(count))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x.mean()


class Steps(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.count, self.inner, self.recurrent = count, nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        inner, state, states = self.inner(x), torch.zeros(len(x), 8), []
        for step in range(self.count):
            state = torch.tanh(inner[:, step] + self.recurrent(state))
            states.append(state)
        return torch.stack(states, 1).mean()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", [Layers, Steps])
def test_planning_takes_calls_in_proportion(kind, monkeypatch):
    make, calls = Planner._make, []

    def counted(*args):
        before = sys.getprofile()
        calls.append(0)

        def count(frame, event, argument):
            calls[-1] += event == "call"

        sys.setprofile(count)
        try:
            return make(*args)
        finally:
            sys.setprofile(before)

    monkeypatch.setattr(Planner, "_make", counted)
    for count in (FEW, MANY):
        ORTModule(kind(count))(torch.randn(3, 40, 8)).backward()
    few, many = calls
    assert many < 1.08 * MANY / FEW * few
