"""What a module reads from outside of itself, calls of its own methods, and objects as arguments."""

from __future__ import annotations

import types
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from ontrain.errors import InputError
from ontrain.training.ortmodule import ORTModule

pytestmark = pytest.mark.sampled(4)

FACTOR = 2.0


class Scaled(nn.Module):
    of_class = 2.0

    def __init__(self):
        super().__init__()
        self.linear, self.helper = nn.Linear(3, 3), types.SimpleNamespace(scale=2.0)

    @property
    def twice(self):
        return self.helper.scale * 2

    def forward(self, x):
        return self.linear(x) * self.of_class * self.twice * of_file()


def of_file():
    return FACTOR


class Parent(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Scaled()

    def forward(self, x):
        return self.inner(x)


@pytest.mark.parametrize("owner", ["class", "helper", "file", "method"])
def test_what_the_module_reads_from_outside_is_followed(owner, monkeypatch):
    plain = Parent()
    model, x = ORTModule(plain), torch.randn(2, 3)
    torch.testing.assert_close(model(x), plain(x))
    if owner == "class":
        monkeypatch.setattr(Scaled, "of_class", 5.0)
    elif owner == "helper":
        plain.inner.helper.scale = 5.0
    elif owner == "file":
        monkeypatch.setitem(globals(), "FACTOR", 5.0)
    else:
        monkeypatch.setattr(Scaled, "forward", lambda self, x: self.linear(x) - 1)
    torch.testing.assert_close(model(x), plain(x))
    assert model._engine.captures == 2


def test_a_value_in_a_closure_is_followed():
    factor = 2.0

    class Closed(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x):
            return self.linear(x) * factor

    plain = Closed()
    model, x = ORTModule(plain), torch.randn(2, 3)
    torch.testing.assert_close(model(x), plain(x))
    factor = 5.0
    torch.testing.assert_close(model(x), plain(x))


class Stepping(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.steps = nn.Linear(3, 1), 0

    def forward(self, x):
        return self.linear(x)

    def loss_of(self, batch):
        return self(batch).square().mean()

    def training_step(self, batch):
        self.seen = len(batch)
        return self.loss_of(batch)

    def width(self):
        return self.linear.in_features


class Refined(Stepping):
    def training_step(self, batch):
        return super().training_step(batch) * 2


@pytest.mark.parametrize("kind", [Stepping, Refined])
def test_a_method_that_calls_the_module_runs_the_graph(kind):
    plain = kind()
    model, x = ORTModule(plain), torch.randn(4, 3)
    loss = model.training_step(x)
    assert model._engine is not None and model._engine.captures == 1
    assert plain.seen == 4 and model.width() == 3
    torch.testing.assert_close(loss, plain.training_step(x))
    loss.backward()
    ours = plain.linear.weight.grad.clone()
    plain.zero_grad()
    plain.training_step(x).backward()
    torch.testing.assert_close(ours, plain.linear.weight.grad)


class HandingOn(Stepping):
    """Gives itself to what calls it."""

    def to_a_function(self, batch):
        return loss_of(self, batch)

    def to_map(self, batch):
        return next(map(self, [batch])).square().mean()

    def through_its_class(self, batch):
        return HandingOn.__call__(self, batch).square().mean()

    def through_what_returns_it(self, batch):
        return self.itself()(batch).square().mean()

    def itself(self):
        return self

    def name_of(self, attribute):
        return getattr(self, attribute), isinstance(self, HandingOn)


def loss_of(module, batch):
    return module(batch).square().mean()


@pytest.mark.parametrize("method", ["to_a_function", "to_map", "through_its_class", "through_what_returns_it"])
def test_a_method_that_hands_the_module_on_runs_the_graph(method):
    plain = HandingOn()
    model, x = ORTModule(plain), torch.randn(4, 3)
    loss = getattr(model, method)(x)
    assert model._engine is not None and model._engine.captures == 1
    torch.testing.assert_close(loss, getattr(plain, method)(x))


def test_a_method_that_only_asks_about_the_module_stays_the_modules():
    plain = HandingOn()
    model = ORTModule(plain)
    assert model.name_of.__self__ is plain and model.name_of("steps") == (0, True)


class Flagged(Stepping):
    def forward(self, x, flags):
        y = self.linear(x)
        return -y if "minus" in flags else y


@pytest.mark.parametrize("kind", [set, frozenset])
def test_a_set_of_strings_is_a_plain_value(kind):
    plain = Flagged()
    model, x = ORTModule(plain), torch.randn(4, 3)
    for flags in (["minus", "b"], ["b", "minus"], ["b"], ["b"]):
        torch.testing.assert_close(model(x, kind(flags)), plain(x, kind(flags)))
    assert model._engine.captures == 2


class Graph:
    """A plain object, as graph libraries hand to their modules."""

    def __init__(self, x, y, name="graph"):
        self.x, self.y, self.name = x, y, name


@dataclass
class Pair:
    x: torch.Tensor
    y: torch.Tensor


class Summed(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, batch):
        return self.linear(batch.x) + batch.y


@pytest.mark.parametrize("kind", [Graph, Pair, lambda x, y: types.SimpleNamespace(x=x, y=y)])
def test_an_object_with_tensors_is_captured_once(kind):
    plain = Summed()
    model = ORTModule(plain)
    for rows in (4, 5, 4):
        batch = kind(torch.randn(rows, 3), torch.randn(rows, 2))
        torch.testing.assert_close(model(batch), plain(batch))
    assert model._engine.captures == 1


def test_an_object_that_hides_its_tensors_is_refused_by_name():
    batch = Graph(torch.randn(4, 3), torch.randn(4, 2), name=object())
    with pytest.raises(InputError, match="Graph that holds a tensor"):
        ORTModule(Summed())(batch)


def test_inputs_made_in_inference_mode():
    plain = nn.Sequential(nn.Linear(4, 3), nn.Tanh())
    with torch.inference_mode():
        x = torch.randn(2, 4)
        torch.testing.assert_close(ORTModule(plain)(x), plain(x))


class Parts(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.body(x))

    def embed(self, x):
        return self.body(x)

    def loss(self, x):
        return self(x).sum() + self.head.bias.sum()


def test_a_method_that_calls_a_part_alone_says_so_once(recwarn):
    model = ORTModule(Parts())
    model.loss(torch.randn(2, 4))
    assert not [warning for warning in recwarn if "plain PyTorch" in str(warning.message)]
    for _ in range(2):
        model.embed(torch.randn(2, 4))
    [said] = [warning for warning in recwarn if "plain PyTorch" in str(warning.message)]
    assert "embed of Parts calls self.body(...)" in str(said.message) and said.filename == __file__
