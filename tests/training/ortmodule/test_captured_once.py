"""What forward leaves in Python objects, and no later call reads, costs one capture."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tests.training.ortmodule.networks import pair


class CopiesItself:
    """Copies are made by a way of its own, and share nothing with it."""

    def __init__(self):
        self.terms = {"loss": None}

    def __deepcopy__(self, copies):
        return CopiesItself()


class KeepsTerms(nn.Module):
    """As gpytorch's kernels keep terms of the loss: an object in each call."""

    def __init__(self):
        super().__init__()
        self.layer, self.kernel = nn.Linear(4, 3), CopiesItself()

    def forward(self, x):
        y = self.layer(x)
        self.kernel.terms["loss"] = SimpleNamespace(value=y.sum())
        return y


class Generated(nn.Module):
    """Runs code that was made of text, and keeps its globals, where Python notes of what the code has warned."""

    def __init__(self):
        super().__init__()
        self.layer, self.code = nn.Linear(4, 3), SimpleNamespace(scope={"warn": warnings.warn})
        exec("def told(y):\n    warn('few rows')\n    return y", self.code.scope)

    def forward(self, x):
        return self.code.scope["told"](self.layer(x))


@pytest.mark.parametrize("kind", [KeepsTerms, Generated])
def test_what_no_later_call_reads_costs_one_capture(kind):
    ours, eager = pair(kind())
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        for _ in range(4):
            x = torch.randn(2, 4)
            torch.testing.assert_close(ours(x), eager(x))
    assert ours._engine.captures == 1
