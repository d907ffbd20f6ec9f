"""Attributes that change between calls, and that forward does not read: the graph holds on."""

import copy

import torch
from torch import nn

from ontrain.training.ortmodule import ORTModule


class Scaled(nn.Module):
    """Reads `scale` always, `shift` in evaluation mode, and `step` never."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.scale, self.shift, self.step = 2.0, 0.0, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x) * self.scale
        return y if self.training else y + self.shift


class Branching(Scaled):
    """Reads one number on each path."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        return y * self.scale if x.sum() > 0 else y + self.shift


X = torch.linspace(-1, 2, 12).reshape(4, 3)


def assert_equal_calls(module: nn.Module, ours: ORTModule, x: torch.Tensor = X) -> None:
    torch.testing.assert_close(ours(x), module(x))


def test_a_step_number_that_a_loop_notes_in_the_module_costs_one_capture_at_most() -> None:
    ours = ORTModule(Scaled())
    for step in range(5):
        ours.step = step
        ours.best = float(step)
        ours.layer.seen = step
        ours(X)
    assert ours._engine.captures == 2


def test_what_forward_reads_is_still_followed() -> None:
    module = Scaled()
    ours = ORTModule(copy.deepcopy(module))
    for step in range(6):
        module.step = ours.step = step
        module.scale = ours.scale = 1.0 if step < 4 else 3.0
        assert_equal_calls(module, ours)


def test_what_forward_reads_in_another_mode_only_is_followed_there() -> None:
    module = Scaled()
    ours = ORTModule(copy.deepcopy(module))
    for step in range(8):
        module.step = ours.step = step
        module.shift = ours.shift = float(step // 2)
        module.train(step % 2 == 0)
        ours.train(step % 2 == 0)
        assert_equal_calls(module, ours)


def test_what_forward_reads_on_another_path_is_followed_there() -> None:
    module = Branching()
    ours = ORTModule(copy.deepcopy(module))
    for step in range(10):
        module.step = ours.step = step
        module.scale, module.shift = ours.scale, ours.shift = 1.0 + step // 5, 2.0 + step // 7
        assert_equal_calls(module, ours, X if step % 2 else -X)
