"""A forward may check the values of its inputs; a graph leaves the checks out, and keeps refusing real branches."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from ontrain.capture import capture
from ontrain.errors import CaptureError
from ontrain.training.ortmodule import ORTModule
from tests.capture.harness import run_captured


class Checked(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x, ids):
        if ids is not None and ids.max() >= 10:
            message = f"{ids.shape} too large"
            raise ValueError(message)
        assert torch.all(ids >= 0).item(), "negative"
        if not torch.isfinite(x).all():
            raise ValueError("not finite")
        if (x.abs() < 100).all():
            y = self.linear(x)
        else:
            raise ValueError("too far")
        return y + ids.unsqueeze(-1)


class Mixed(nn.Module):
    """Raises or not by two values that have to be one true and one false."""

    def forward(self, x, ids):
        if ids.min() < 0 and not x.any():
            raise ValueError("neither")
        return x * 2


class Choosing(nn.Module):
    def forward(self, x, ids):
        assert ids.sum() > 0
        if ids.min() < 0:
            x = x * 2
        return x


def test_checks_of_values_are_passed_by():
    module, x, ids = Checked(), torch.randn(4, 3), torch.arange(4)
    captured = capture(module, (x, ids), dynamic=[{0: "batch"}, {0: "batch"}])
    assert not captured.specialised
    for rows in (4, 6):
        x, ids = torch.randn(rows, 3), torch.arange(rows)
        torch.testing.assert_close(run_captured(captured, (x, ids))[0], module(x, ids))


def test_a_check_that_no_one_answer_passes_is_refused():
    with pytest.raises(CaptureError, match="branches on the values") as caught:
        capture(Mixed(), (torch.randn(3), torch.arange(3)))
    assert "test_checks.py" in caught.value.source


def test_a_choice_between_computations_is_still_refused():
    with pytest.raises(CaptureError, match="branches on the values") as caught:
        capture(Choosing(), (torch.randn(3), torch.arange(3)))
    assert "if ids.min() < 0" in caught.value.source


class Sized(nn.Module):
    def __init__(self, check):
        super().__init__()
        self.layer, self.check = nn.Linear(3, 2, dtype=torch.float64), check

    def forward(self, x):
        y = self.layer(x)
        low, high = y[x.sum(1) > 0], y.exp()[x.sum(1) > 0]
        self.check(low, high)
        return (low * high).sum()


def _unless_equal(low, high):
    if low.shape != high.shape or [*low.shape[:1]] != [*high.shape[:1]]:
        raise ValueError("the shapes differ")


def _unless_not_equal(low, high):
    assert not low.shape != high.shape  # noqa: SIM202


def _unless_among(low, high):
    if low.shape not in [(99, 99), high.shape]:
        raise ValueError("another shape")


@pytest.mark.parametrize("check", [_unless_equal, _unless_not_equal, _unless_among])
def test_a_check_of_whole_shapes_that_follow_from_values_is_passed(check):
    eager = Sized(check)
    ours = ORTModule(copy.deepcopy(eager))
    for rows in (9, 12):
        x = torch.randn(rows, 3, dtype=torch.float64)
        losses = [module(x) for module in (ours, eager)]
        torch.testing.assert_close(*losses)
        for module, loss in zip((ours, eager), losses, strict=True):
            module.zero_grad()
            loss.backward()
        torch.testing.assert_close(ours.module.layer.weight.grad, eager.layer.weight.grad)
