"""Buffers that forward makes at its first call, or anew for longer inputs, are there as eager's are."""

import copy

import pytest
import torch
from torch import nn

from ontrain.errors import CaptureError
from ontrain.training.ortmodule import ORTModule


class Distances(nn.Module):
    """Keeps a bias by distance, which grows with the longest input so far."""

    def __init__(self, first=None):
        super().__init__()
        self.a, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.register_buffer("bias", first, persistent=False)
        self.double()

    def forward(self, x):
        length = x.shape[1]
        if self.bias is None or self.bias.shape[-1] < length:
            places = torch.arange(length, dtype=x.dtype)
            self.bias = -(places[:, None] - places).abs()
        h = self.norm(self.a(x).transpose(1, 2)).transpose(1, 2)
        return (h @ h.transpose(1, 2) + self.bias[:length, :length]).softmax(-1) @ h


class Counted(nn.Module):
    """Keeps what it saw last: forward depends on it."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.register_buffer("last", None)

    def forward(self, x):
        h = self.a(x)
        result = h if self.last is None else h + self.last.mean()
        self.last = h.detach()
        return result


@pytest.mark.parametrize("first", [None, torch.zeros(1, 1)], ids=["made", "grown"])
def test_tables_that_grow_with_the_longest_input(first):
    eager = Distances(first)
    ours = ORTModule(copy.deepcopy(eager))
    for length in (3, 5, 4, 5, 7, 2):
        x = torch.randn(2, length, 4, dtype=torch.float64)
        for module in (eager, ours):
            module.zero_grad()
            module(x).pow(2).sum().backward()
        torch.testing.assert_close(ours(x), eager(x), rtol=1e-9, atol=1e-9)
        for actual, wanted in zip(ours.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(actual.grad, wanted.grad, rtol=1e-9, atol=1e-9)
        for (name, actual), (_, wanted) in zip(ours.named_buffers(), eager.named_buffers(), strict=True):
            torch.testing.assert_close(actual, wanted, rtol=1e-9, atol=1e-9, msg=name)


def test_what_the_next_call_depends_on_is_refused():
    ours = ORTModule(Counted())
    with pytest.raises(CaptureError, match="gives buffer 'last' of Counted another shape"):
        ours(torch.randn(2, 4))
    assert ours.last is None
