"""Attributes in slots: read and written as they are at each look."""

from __future__ import annotations

import copy
import pathlib
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from ontrain.capture import Slots, slots_of
from ontrain.training.ortmodule import ORTModule


class Notes:
    __slots__ = ("calls", "last")

    def __init__(self):
        self.calls = 0


class More(Notes):
    def __init__(self):
        super().__init__()
        self.offset = 3.0


@dataclass(slots=True, frozen=True)
class Fixed:
    gain: float = 2.0


def test_attributes_in_slots_and_in_a_dictionary_are_one_mapping():
    owner = More()
    slots = Slots(owner)
    assert dict(slots) == {"calls": 0, "offset": 3.0} and len(slots) == 2 and "last" not in slots
    owner.last = 1
    slots["calls"], slots["offset"] = 5, 4.0
    assert (owner.calls, owner.offset, slots["last"]) == (5, 4.0, 1)
    del slots["last"], slots["offset"]
    assert not hasattr(owner, "last") and vars(owner) == {}
    with pytest.raises(KeyError):
        slots["last"]


def test_slots_of_classes_that_are_not_the_users_are_their_own_affair():
    assert slots_of(Notes) == slots_of(More) == ("calls", "last")
    assert slots_of(Fixed) == ("gain",)
    assert slots_of(pathlib.PurePosixPath) == slots_of(int) == ()


class Noting(nn.Module):
    def __init__(self, notes):
        super().__init__()
        self.layer, self.notes, self.fixed = nn.Linear(3, 2).double(), notes, Fixed()

    def forward(self, x):
        self.notes.calls += 1
        y = self.layer(x) * self.fixed.gain + getattr(self.notes, "offset", 0.0)
        self.notes.last = y.detach().mean()
        return y * self.notes.calls


@pytest.mark.parametrize("kind", [Notes, More])
def test_what_forward_keeps_in_slots_is_read_and_written_as_in_eager_pytorch(kind):
    eager = Noting(kind())
    ours = ORTModule(copy.deepcopy(eager))
    for call, rows in enumerate((4, 2, 4, 3)):
        if call == 2:
            eager.notes.calls = ours.notes.calls = 10
            eager.fixed = ours.module.fixed = Fixed(-1.0)
        if call == 3 and kind is More:
            eager.notes.offset = ours.notes.offset = -1.0
        x = torch.randn(rows, 3, dtype=torch.float64)
        expected, result = eager(x), ours(x)
        torch.testing.assert_close(result, expected)
        expected.sum().backward()
        result.sum().backward()
        torch.testing.assert_close(ours.layer.weight.grad, eager.layer.weight.grad)
        assert ours.notes.calls == eager.notes.calls
        torch.testing.assert_close(ours.notes.last, eager.notes.last)
