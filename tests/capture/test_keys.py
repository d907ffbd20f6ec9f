"""A submodule chosen by a name that forward makes of a value is the one that eager PyTorch takes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.training.ortmodule.networks import assert_same_gradients, pair

DOUBLE = dict(rtol=1e-9, atol=1e-11)


class Routed(nn.Module):
    """Rows go to experts; `look_up(module, index)` finds the expert of an index that a tensor holds."""

    def __init__(self, look_up):
        super().__init__()
        self.router, self.look_up = nn.Linear(4, 3), look_up
        self.experts = nn.ModuleDict({f"expert_{i:02d}": nn.Linear(4, 4) for i in range(3)})
        for i in range(3):
            setattr(self, f"scale{i}", nn.Parameter(torch.tensor(1.0 + i)))

    def forward(self, x):
        chosen = nn.functional.one_hot(self.router(x).argmax(-1), 3)
        y = torch.zeros_like(x)
        for index in (chosen.sum(0) > 0).nonzero():
            (rows,) = torch.where(chosen[:, index].squeeze(-1))
            y = y.index_add(0, rows, self.look_up(self, index[0])(x[rows]))
        return y.square().sum()


def by_key(module, index):
    return module.experts[f"expert_{index:02d}"]


def by_format(module, index):
    return module.experts["expert_{:02d}".format(index)]  # noqa: UP032


def if_there(module, index):
    name = f"expert_{index:02d}"
    return module.experts[name] if name in module.experts else nn.Identity()


def by_attribute(module, index):
    scale = getattr(module, f"scale{index}")
    return lambda x: x * scale


@pytest.mark.sampled(2)
@pytest.mark.parametrize("look_up", [by_key, by_format, if_there, by_attribute])
def test_each_expert_is_found_by_the_name_that_is_made_of_its_index(look_up):
    ours, eager = pair(Routed(look_up).double())
    for seed in range(3):
        x = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        for module in (ours, eager):
            module.zero_grad()
        torch.testing.assert_close(ours(x), eager(x), **DOUBLE)
        ours(x).backward()
        eager(x).backward()
        assert_same_gradients(ours, eager, **DOUBLE)


def test_a_value_that_is_only_written_down_decides_nothing():
    class Telling(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.lines = nn.Linear(4, 4), []

        def forward(self, x):
            y = self.linear(x)
            self.lines.append(f"{(y > 0).sum()} of {y.numel()}")
            return y.sum()

    ours, _ = pair(Telling())
    for seed in range(3):
        ours(torch.randn(5, 4, generator=torch.Generator().manual_seed(seed))).backward()
    assert ours._engine.captures == 1
