"""Arguments of a call that share memory, of which forward writes to one in place."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ontrain.errors import InputError
from ontrain.training.ortmodule import ORTModule


class Doubles(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, a, b):
        a.mul_(2)
        return self.layer(a) + self.layer(b)


@pytest.mark.parametrize(
    "show", [lambda x: (x[:-1], x[1:]), lambda x: (x, x[:]), lambda x: (x[:4], x[:4].T)],
    ids=["rows", "all", "transposed"],
)  # fmt: skip
def test_a_write_to_an_argument_that_shares_memory_with_another_one_is_refused(show):
    model = ORTModule(Doubles())
    with pytest.raises(InputError, match="'a' in place, which shares memory with 'b'"):
        model(*show(torch.randn(5, 4)))


@pytest.mark.parametrize(
    "show", [lambda x: (x[:2, :4], x[2:, :4]), lambda x: (x[:, :4], x[:, 4:]), lambda x: (x[:, :4], x[:, :4].clone())],
    ids=["rows", "columns", "a copy"],
)  # fmt: skip
def test_arguments_that_lie_beside_each_other_are_taken(show):
    module = Doubles()
    x = torch.randn(4, 8)
    twin = x.clone()
    got, wanted = ORTModule(module)(*show(x)), module(*show(twin))
    torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(x, twin)


def test_one_tensor_as_both_arguments_is_written_to_as_in_eager():
    module = Doubles()
    x = torch.randn(3, 4)
    twin = x.clone()
    torch.testing.assert_close(ORTModule(module)(x, x), module(twin, twin))
