"""Texts that forward makes of sizes hold the numbers; a size that only a message tells goes on varying."""

from __future__ import annotations

import functools
import logging

import pytest
import torch
from torch import nn

from tests.training.ortmodule.networks import assert_same_gradients, pair

logger = logging.getLogger(__name__)
TABLE = {str(size): float(size) for size in range(20)}
NUMBERS = {size: float(size) for size in range(20)}


@functools.cache
def doubled(size):
    return 2.0 * size


FUNCTIONS = {
    "a key": lambda x: TABLE[str(x.shape[0])],
    "a key that may be missing": lambda x: TABLE.get(str(x.shape[0]), 0.5),
    "a key within a logarithm": lambda x: torch.log(torch.ones_like(x) * TABLE.get(f"{x.shape[0]}", 0.5)),
    "a length of a text": lambda x: len(f"{x.shape[0]}"),
    "repr": lambda x: 2.0 if repr(x.size(0)) == "3" else 1.0,
    "a shape": lambda x: 2.0 if str(x.shape) == "torch.Size([3, 4])" else 1.0,
    "a tuple": lambda x: 2.0 if f"{tuple(x.shape)}" == "(3, 4)" else 1.0,
    "a quotient": lambda x: 2.0 if str(x.shape[0] / 2) == "1.5" else 1.0,
    "a comparison": lambda x: 2.0 if str(x.shape[0] > 2) == "True" else 1.0,
    "a number as a key": lambda x: NUMBERS.get(x.shape[0], 0.5),
    "a set of sizes": lambda x: float(len({x.shape[0], x.shape[1], 3})),
    "a cached function of a size": lambda x: doubled(x.shape[0]),
    "a value as a key": lambda x: NUMBERS.get(int((x > 0).sum()), 0.5),
    "values that others are looked up by": lambda x: float(sum(n in set((x < 0).sum(1).tolist()) for n in range(3))),
    "a set of values": lambda x: float(len(set((x > 0).sum(1).tolist()))),
    "a comparison as a key": lambda x: {True: 2.0, False: 0.5}[bool(x.shape[0] > 2)],
    "how many values": lambda x: TABLE.get(str(len(x[x > 0])), 0.5),
}


class Scaled(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.linear, self.function = nn.Linear(4, 4), function

    def forward(self, x):
        return self.linear(x) * self.function(x)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_text_of_a_size_is_pythons(name):
    ours, eager = pair(Scaled(FUNCTIONS[name]).double())
    for rows in (2, 3, 5, 12, 3):
        x = torch.randn(rows, 4, dtype=torch.float64)
        for module in (ours, eager):
            module.zero_grad()
        torch.testing.assert_close(ours(x), eager(x), rtol=1e-12, atol=1e-12)
        ours(x).sum().backward()
        eager(x).sum().backward()
        assert_same_gradients(ours, eager, rtol=1e-12, atol=1e-12)


def test_a_cached_function_of_a_value():
    ours, eager = pair(Scaled(lambda x: doubled((x > 0).sum().item())).double())
    for rows in (2, 3):
        x = torch.randn(rows, 4, dtype=torch.float64)
        torch.testing.assert_close(ours(x), eager(x), rtol=1e-12, atol=1e-12)


def checked(x):
    torch._assert(x.shape[1] == 4, f"expected 4 columns, got {x.shape[0]} rows of {x.shape[1]}")
    logger.debug(f"{x.shape[0]} rows")
    logger.debug("%s", x.shape)
    logger.debug("{} rows".format(x.shape[0]))  # noqa: UP032
    return 2.0


def test_a_size_that_only_a_message_tells_is_captured_once():
    ours, eager = pair(Scaled(checked).double())
    for rows in (2, 3, 5):
        x = torch.randn(rows, 4, dtype=torch.float64)
        torch.testing.assert_close(ours(x), eager(x), rtol=1e-12, atol=1e-12)
    assert ours._engine.captures == 1


def test_an_error_of_forward_tells_the_size_of_the_batch():
    def refusing(x):
        if x.shape[1] != 5:
            raise ValueError(f"expected 5 columns, got {x.shape[0]} rows of {x.shape[1]}")

    ours, _ = pair(Scaled(refusing))
    with pytest.raises(ValueError, match="got 3 rows of 4"):
        ours(torch.randn(3, 4))
