"""A forward that sets torch's generator draws the same numbers again, which no graph does: refused where it draws."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ontrain.capture import capture
from ontrain.errors import CaptureError
from tests.training.ortmodule.networks import assert_same_gradients, pair


class Drawing(nn.Module):
    """A linear layer, and what `draw` does with its result."""

    def __init__(self, draw):
        super().__init__()
        self.linear, self.draw = nn.Linear(4, 4), draw

    def forward(self, x):
        return self.draw(self.linear(x))


def seeded(y):
    torch.manual_seed(3)
    return y * torch.rand_like(y)


def drawn_again(y):
    state = torch.get_rng_state()
    z = nn.functional.dropout(y, 0.5)
    torch.random.set_rng_state(state)
    return z + nn.functional.dropout(y, 0.5)


def forked(y):
    state = torch.get_rng_state()
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(state)
        return nn.functional.dropout(y, 0.5)


def seeded_before_a_fork(y):
    torch.manual_seed(3)
    with torch.random.fork_rng(devices=[]):
        torch.seed()
    return y * torch.rand_like(y)


def seeded_before_a_branch(y):
    torch.manual_seed(3)
    return torch.cond(y.sum() > 0, lambda y: y * torch.rand_like(y), lambda y: y.sin(), (y,))


@pytest.mark.parametrize("draw", [seeded, drawn_again, forked, seeded_before_a_fork, seeded_before_a_branch])
def test_draws_behind_a_line_that_sets_the_generator_are_refused(draw):
    with pytest.raises(CaptureError, match="behind a line that sets torch's generator") as caught:
        capture(Drawing(draw), (torch.randn(2, 4),))
    assert "test_reseeding.py" in caught.value.source
    assert 'breaks="allow"' in caught.value.way_out


def without_draws(y):
    torch.manual_seed(3)
    return nn.functional.dropout(y, 0.0)


def behind_a_fork(y):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        z = y.sin()
    return z * (1 + 0 * torch.rand_like(y))


def seeded_anew(y):
    torch.manual_seed(3)
    torch.seed()
    return y + 0 * torch.rand_like(y)


def around_a_branch(y):
    y = torch.cond(y.sum() > 0, torch.sin, torch.cos, (y,))
    return y + 0 * torch.rand_like(y)


@pytest.mark.parametrize("draw", [without_draws, behind_a_fork, seeded_anew, around_a_branch])
def test_a_forward_that_draws_nothing_from_the_state_it_sets_is_captured(draw):
    ours, eager = pair(Drawing(draw))
    x, state = torch.randn(2, 4), torch.get_rng_state()
    for module in (ours, eager):
        torch.set_rng_state(state)
        module(x).square().sum().backward()
    assert_same_gradients(ours, eager)


def test_a_seed_without_draws_is_captured_whatever_the_default_dtype():
    def drawless(y):
        torch.manual_seed(3)
        return y.sin()

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        ours, eager = pair(Drawing(drawless))
        x = torch.randn(2, 4)
        torch.testing.assert_close(ours(x), eager(x))
    finally:
        torch.set_default_dtype(before)
