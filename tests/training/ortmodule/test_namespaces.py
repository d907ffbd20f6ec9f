"""Objects beside modules that a forward reads: the next call computes with what was changed in them."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import sys
import types
from collections import deque

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ontrain.training.ortmodule import ORTModule

pytestmark = pytest.mark.sampled(4)


@dataclasses.dataclass
class Settings:
    scale: float = 2.0


class Plain:
    def __init__(self, scale: float = 2.0) -> None:
        self.scale, self.seen = scale, 0

    def times(self, y: torch.Tensor) -> torch.Tensor:
        return y * self.scale


ARGUMENTS = argparse.Namespace(scale=2.0, inner=types.SimpleNamespace(scale=2.0))
GLOBAL, TABLE, NUMBERS = Plain(), {"item": Plain()}, np.full(3, 2.0, np.float32)


@dataclasses.dataclass(slots=True)
class Slotted:
    scale: float = 2.0


SLOTTED = Slotted()


class Scaled(nn.Module):
    """A layer, and something that is held beside it."""

    def __init__(self, held: object, forward) -> None:
        super().__init__()
        self.linear, self.held, self._forward = nn.Linear(3, 3), held, forward

    def forward(self, x):
        return self._forward(self, self.linear(x))


def by_scale(module, y):
    return y * module.held.scale


def called(module, y):
    return module.held(y)


HELD = {
    "another dtype": (torch.bfloat16, lambda m, y: y.to(m.held), lambda m: setattr(m, "held", torch.float64)),
    "another kernel": (torch.tanh, called, lambda m: setattr(m, "held", torch.relu)),
    "another function": (F.silu, called, lambda m: setattr(m, "held", F.relu)),
    "another class": (nn.Tanh, lambda m, y: m.held()(y), lambda m: setattr(m, "held", nn.ReLU)),
    "another method": (
        Plain(2.0).times, called, lambda m: setattr(m, "held", Plain(5.0).times),
    ),
    "another helper": (Plain(), by_scale, lambda m: setattr(m, "held", Plain(5.0))),
    "another dataclass": (Settings(), by_scale, lambda m: setattr(m, "held", Settings(5.0))),
    "a slot": (Slotted(), by_scale, lambda m: setattr(m.held, "scale", 5.0)),
    "a namespace's attribute": (argparse.Namespace(scale=2.0), by_scale, lambda m: setattr(m.held, "scale", 5.0)),
    "a helper in a list": (
        [Plain()], lambda m, y: y * m.held[0].scale, lambda m: setattr(m.held[0], "scale", 5.0),
    ),
    "a helper in a dict": (
        {"a": Settings()}, lambda m, y: y * m.held["a"].scale, lambda m: setattr(m.held["a"], "scale", 5.0),
    ),
    "a complex number": (2 + 1j, lambda m, y: y * m.held.imag, lambda m: setattr(m, "held", 2 + 3j)),
    "a range": (range(2), lambda m, y: y * len(m.held), lambda m: setattr(m, "held", range(5))),
    "a slice": (slice(0, 2), lambda m, y: y[m.held], lambda m: setattr(m, "held", slice(0, 1))),
    "a queue": (deque([2.0]), lambda m, y: y * m.held[-1], lambda m: m.held.append(5.0)),
    "an array": (
        np.full(3, 2.0, np.float32), lambda m, y: y * torch.from_numpy(m.held),
        lambda m: setattr(m, "held", np.full(3, 5.0, np.float32)),
    ),
    "numbers of an array": (
        np.full(3, 2.0, np.float32), lambda m, y: y * torch.from_numpy(m.held), lambda m: m.held.fill(5.0),
    ),
    "another distribution": (
        torch.distributions.Normal(0.0, 2.0), lambda m, y: y * m.held.scale,
        lambda m: setattr(m, "held", torch.distributions.Normal(0.0, 5.0)),
    ),
    "a new attribute": (
        None, lambda m, y: y * getattr(m.linear, "factor", 2.0), lambda m: setattr(m.linear, "factor", 5.0),
    ),
}  # fmt: skip
NAMED = {
    "a namespace": (lambda m, y: y * ARGUMENTS.scale, lambda patch: patch.setattr(ARGUMENTS, "scale", 5.0)),
    "a namespace within": (
        lambda m, y: y * ARGUMENTS.inner.scale, lambda patch: patch.setattr(ARGUMENTS.inner, "scale", 5.0),
    ),
    "an object": (lambda m, y: y * GLOBAL.scale, lambda patch: patch.setattr(GLOBAL, "scale", 5.0)),
    "another object": (lambda m, y: y * GLOBAL.scale, lambda patch: patch.setitem(globals(), "GLOBAL", Plain(5.0))),
    "a slot": (lambda m, y: y * SLOTTED.scale, lambda patch: patch.setattr(SLOTTED, "scale", 5.0)),
    "an object's method": (lambda m, y: GLOBAL.times(y), lambda patch: patch.setattr(GLOBAL, "scale", 5.0)),
    "an object in a dict": (
        lambda m, y: y * TABLE["item"].scale, lambda patch: patch.setattr(TABLE["item"], "scale", 5.0),
    ),
    "numbers of an array": (
        lambda m, y: y * torch.from_numpy(NUMBERS), lambda patch: NUMBERS.fill(5.0),
    ),
}  # fmt: skip


def _follows(module: Scaled, change) -> None:
    model, x = ORTModule(module), torch.randn(2, 3)
    before = model(x)
    torch.testing.assert_close(before, module(x))
    model(x)
    assert model._engine.captures == 1
    change()
    expected = module(x)
    alike = expected.dtype == before.dtype and expected.shape == before.shape
    assert not alike or not torch.allclose(expected, before)
    torch.testing.assert_close(model(x), expected)
    model(x)
    assert model._engine.captures == 2


@pytest.mark.parametrize("case", HELD)
def test_what_a_module_holds_is_followed(case):
    held, forward, change = HELD[case]
    module = Scaled(held, forward)
    _follows(module, lambda: change(module))
    if isinstance(held, Plain | Settings | argparse.Namespace):
        held.scale = 2.0


@pytest.mark.parametrize("case", NAMED)
def test_what_forward_names_outside_is_followed(case, monkeypatch):
    forward, change = NAMED[case]
    NUMBERS.fill(2.0)
    _follows(Scaled(None, forward), lambda: change(monkeypatch))


def test_what_a_function_closes_over_is_followed():
    table, numbers, options, constant = {"by": 2.0}, [2.0], types.SimpleNamespace(scale=2.0), torch.full((3,), 2.0)

    def forward(module, y):
        return y * table["by"] * numbers[0] * options.scale * constant

    for change in (
        lambda: table.update(by=5.0), lambda: numbers.append(numbers.pop() + 1), lambda: setattr(options, "scale", 3.0),
        lambda: constant.mul_(2),
    ):  # fmt: skip
        _follows(Scaled(None, forward), change)


def test_another_file_of_the_users_is_followed(tmp_path, monkeypatch):
    (tmp_path / "scales_of_a_test.py").write_text(
        "from types import SimpleNamespace\nFACTOR, OPTIONS = 2.0, SimpleNamespace(scale=2.0)\n"
        "def twice(y):\n    return y * FACTOR\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    file = importlib.import_module("scales_of_a_test")
    monkeypatch.setitem(globals(), "SCALES", file)
    try:
        for name, value in (("FACTOR", 5.0), ("twice", torch.neg)):
            _follows(
                Scaled(None, lambda m, y: SCALES.twice(y)),  # noqa: F821
                lambda name=name, value=value: setattr(file, name, value),
            )
        _follows(
            Scaled(None, lambda m, y: y * SCALES.OPTIONS.scale),  # noqa: F821
            lambda: setattr(file.OPTIONS, "scale", 5.0),
        )
    finally:
        del sys.modules["scales_of_a_test"]


def test_what_forward_does_not_name_makes_no_new_capture(monkeypatch):
    model, x = ORTModule(Scaled(None, lambda m, y: y * GLOBAL.scale)), torch.randn(2, 3)
    for step in range(3):
        monkeypatch.setattr(GLOBAL, "seen", step)
        model.module.last = np.full(3, step)
        model(x)
    assert model._engine.captures == 1


class Asking(nn.Module):
    """Asks for the mode of gradients, and what requires them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        y = self.linear(x) * (2 if torch.is_grad_enabled() else 3) * (5 if x.requires_grad else 7)
        with torch.no_grad():
            constant = torch.ones(3) * (2 if torch.is_grad_enabled() else 3)
        return y * constant * (11 if self.linear.weight.requires_grad else 13) * (17 if y.requires_grad else 19)


def test_a_forward_that_asks_for_gradients_is_told_of_each_call():
    module, x = Asking(), torch.randn(2, 3)
    model, leaf = ORTModule(module), torch.randn(2, 3, requires_grad=True)
    for _ in range(2):
        torch.testing.assert_close(model(x), module(x))
        torch.testing.assert_close(model(leaf), module(leaf))
        with torch.no_grad():
            torch.testing.assert_close(model(x), module(x))
        module.linear.weight.requires_grad_(False)
        torch.testing.assert_close(model(x), module(x))
        module.linear.weight.requires_grad_(True)
    assert model._engine.captures == 4


def test_another_default_dtype_is_followed():
    module, x = Scaled(None, lambda m, y: (y, torch.arange(3) * 1.5)), torch.randn(2, 3)
    model = ORTModule(module)
    assert model(x)[1].dtype == torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert model(x)[1].dtype == module(x)[1].dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


class Uncounted(tuple):
    """Like the irreducible representations of e3nn."""

    __slots__ = ()

    def __len__(self):
        raise NotImplementedError


def test_an_attribute_may_refuse_to_say_how_long_it_is():
    module = nn.Linear(4, 4)
    module.representations = Uncounted((1, 2))
    x = torch.randn(2, 4)
    torch.testing.assert_close(ORTModule(module)(x), module(x))
