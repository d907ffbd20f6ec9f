"""Hooks on what autograd saves, within forward: obeyed where the values stay, refused where they change."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

from ontrain.capture import capture
from ontrain.errors import CaptureError
from ontrain.training.ortmodule import ORTModule

X = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(3, 4)


class Hooked(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.first, self.second, self.make = nn.Linear(4, 4), nn.Linear(4, 2), make

    def forward(self, x):
        with self.make():
            y = self.first(x).tanh()
        return self.second(y)


def written(tensor):
    file = io.BytesIO()
    torch.save(tensor, file)
    return file


def read(file):
    return torch.load(io.BytesIO(file.getvalue()))


class Added(saved_tensors_hooks):
    def __init__(self):
        super().__init__(lambda tensor: tensor + 1, lambda tensor: tensor)


CHANGING = {
    "half": lambda: saved_tensors_hooks(lambda tensor: tensor.half(), lambda tensor: tensor.double()),
    "doubled": lambda: saved_tensors_hooks(lambda tensor: tensor * 2, lambda tensor: tensor),
    "large ones": lambda: saved_tensors_hooks(
        lambda tensor: tensor * (1 if tensor.numel() < 1000 else 2), lambda tensor: tensor
    ),
    "class": Added,
    "failing": lambda: saved_tensors_hooks(lambda tensor: {}[tensor], lambda tensor: tensor),
}
KEEPING = {
    "on a CPU": save_on_cpu,
    "as they are": lambda: saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor),
    "in a file": lambda: saved_tensors_hooks(written, read),
    "as an array": lambda: saved_tensors_hooks(lambda tensor: tensor.numpy().copy(), torch.from_numpy),
}


@pytest.mark.parametrize("make", CHANGING.values(), ids=CHANGING)
def test_hooks_that_change_values_are_refused_by_line(make):
    with pytest.raises(CaptureError, match=r"hooks on the tensors[\s\S]*test_saved_tensors.py:\d+: with self.make"):
        capture(Hooked(make).double(), (X,))


@pytest.mark.parametrize("make", KEEPING.values(), ids=KEEPING)
def test_hooks_that_keep_values_change_nothing(make):
    eager = Hooked(make).double()
    ours = ORTModule(copy.deepcopy(eager))
    for rows in (3, 2):
        for module in (ours, eager):
            module(X[:rows]).square().sum().backward()
    for mine, theirs in zip(ours.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)
