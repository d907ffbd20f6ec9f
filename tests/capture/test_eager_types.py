"""A forward that asks what type something is finds eager PyTorch's types, and goes the way that eager PyTorch goes."""

from __future__ import annotations

import copy
import functools
from collections.abc import Hashable
from numbers import Integral, Number, Real

import numpy as np
import pytest
import torch
from torch import nn

from ontrain.training.ortmodule import ORTModule

_SCALES = {int: 2.0, float: 3.0}


class Asking(nn.Module):
    """A layer that chooses between two by what a question says."""

    def __init__(self, question):
        super().__init__()
        self.expected, self.other, self.question = nn.Linear(4, 3), nn.Linear(4, 3), question

    def forward(self, x):
        return (self.expected if self.question(self, x) else self.other)(x).square().mean()


@functools.singledispatch
def named(value):
    return "another"


@named.register(int)
@named.register(float)
@named.register(torch.Tensor)
@named.register(nn.Parameter)
def _(value):
    return type(value).__name__


def is_named(name, value):
    return named(value) == name and named.dispatch(value.__class__) is not named.dispatch(str)


def matched(self, x):
    match [x.shape[0] / 2, x.shape[0], x]:
        case [float(), int(), torch.Tensor()]:
            return True
        case _:
            return False


def own_class(self, x):
    class Kind(type):
        def __call__(cls, *arguments):
            return super().__call__(*arguments)

    class Own(metaclass=Kind):
        pass

    return type(Own()) is Own and type(Own) is Kind and isinstance(Own, type)


QUESTIONS = {
    "of an input": lambda self, x: type(x) is torch.Tensor,
    "of a result": lambda self, x: type(self.expected(x)) in (torch.Tensor, list),
    "of data": lambda self, x: type(x.data) is torch.Tensor and type(x.detach().sum()) is torch.Tensor,
    "of a parameter": lambda self, x: type(self.expected.weight) is nn.Parameter,
    "as a key": lambda self, x: {torch.Tensor: True, int: False}[type(x)],
    "of a number": lambda self, x: [type(number) for number in (3, 3.0, True)] == [int, float, bool],
    "of a number itself": lambda self, x: type(self.expected.out_features) is int,
    "of a size": lambda self, x: type(x.shape[0]) is int and type(x.shape[0]) in (int, float),
    "of what follows from a size": lambda self, x: type(x.shape[0] / 2) is float and type(x.shape[0] > 1) is bool,
    "of a size, by its name": lambda self, x: type(x.shape[0] + 1).__name__ == "int",
    "of a size, as a key": lambda self, x: _SCALES[type(x.shape[0])] == 2.0 and isinstance(3, type(x.shape[0])),
    "of a size, as an instance": lambda self, x: (
        isinstance(x.shape[0], Integral) and isinstance(x.shape[0] + 1, Hashable)
    ),
    "of a fraction, as an instance": lambda self, x: (
        isinstance(x.shape[0] / 2, float) and isinstance(x.shape[0] / 2, Real)
    ),
    "of a comparison, as an instance": lambda self, x: isinstance(x.shape[0] > 1, bool | str),
    "of a tensor, as an instance": lambda self, x: not isinstance(x, Number) and isinstance(x, torch.Tensor),
    "of a module": lambda self, x: type(self.expected) is nn.Linear and type(x.shape) is torch.Size,
    "of a tensor's own": lambda self, x: x.__class__ is torch.Tensor and x.sum().__class__.__name__ == "Tensor",
    "of a parameter's own": lambda self, x: self.expected.weight.__class__ is nn.Parameter,
    "of a size's own": lambda self, x: (
        x.shape[0].__class__ is int and (x.shape[0] / 2).__class__ is float and issubclass(x.shape[0].__class__, int)
    ),
    "of numpy": lambda self, x: np.isscalar(x.shape[0]) and np.isscalar(x.shape[0] / 2) and not np.isscalar(x),
    "of a dispatched size": lambda self, x: is_named("int", x.shape[0]) and is_named("float", x.shape[0] / 2),
    "of a dispatched tensor": lambda self, x: is_named("Tensor", x) and is_named("Parameter", self.expected.weight),
    "of a match": matched,
    "of a class": lambda self, x: type(nn.Linear) is type and isinstance(nn.Linear, type) and issubclass(type, type),
    "of a class made in forward": own_class,
    "of a class made by type": lambda self, x: type("Made", (), {"number": 3})().number == 3,
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("question", QUESTIONS)
def test_a_type_is_eagers(question, rng):
    module = Asking(QUESTIONS[question]).double()
    wrapped = ORTModule(copy.deepcopy(module))
    for rows in (2, 3):
        x = torch.tensor(rng.standard_normal((rows, 4)))
        expected, loss = module(x), wrapped(x)
        loss.backward()
        torch.testing.assert_close(loss, expected)
        assert wrapped.expected.weight.grad is not None and wrapped.other.weight.grad is None


class UpTo(nn.Module):
    """A layer that takes Python's extremes of a vector of lengths, and of one of values."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 5)

    def forward(self, x, lengths):
        assert max(lengths) <= 5, "a length is longer than its row"
        h = self.layer(x)
        return h[:, : max(lengths)].square().sum() * min(lengths) + max(h[0]) - min(h[1])


def test_pythons_extremes_of_a_vector(rng):
    module = UpTo().double()
    wrapped = ORTModule(copy.deepcopy(module))
    for lengths in ([2, 3], [4, 1, 2], [5, 5]):
        x = torch.tensor(rng.standard_normal((len(lengths), 4)))
        losses = [model(x, torch.tensor(lengths)) for model in (module, wrapped)]
        for model, loss in zip((module, wrapped), losses, strict=True):
            model.zero_grad()
            loss.backward()
        torch.testing.assert_close(losses[1], losses[0])
        torch.testing.assert_close(wrapped.layer.weight.grad, module.layer.weight.grad)


class Unhashed(type):
    def __eq__(cls, other):
        return cls is other


class Box(metaclass=Unhashed):
    pass


class OfABox(nn.Module):
    def forward(self, x):
        box = Box()
        return x * (2 if type(box) is Box and isinstance(box, Box) else 3)


def test_a_class_without_a_hash_is_told():
    x = torch.randn(3)
    torch.testing.assert_close(ORTModule(OfABox())(x), 2 * x)
