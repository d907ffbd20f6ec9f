"""Objects without tensors that forward makes and leaves: later calls find them as in eager PyTorch, or are refused."""

from __future__ import annotations

import copy
from collections import deque
from datetime import date
from decimal import Decimal
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from ontrain.errors import CaptureError, OntrainError
from ontrain.training import ORTTrainer, optim
from ontrain.training.ortmodule import ORTModule

OBJECTS = {
    "set": lambda: {1, 2},
    "frozen set": lambda: frozenset({1}),
    "array": lambda: np.array([3.0]),
    "decimal": lambda: Decimal(2),
    "deque": lambda: deque([1]),
    "namespace": lambda: SimpleNamespace(value=1),
    "date": lambda: date(2020, 1, 1),
}


class First(nn.Module):
    """Takes another factor in its first call, and knows by an object that there was one."""

    def __init__(self, make, place):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5, dtype=torch.float64))
        self.make, self.place, self.table, self.items = make, place, {}, []

    def forward(self, x):
        return (x * self.scale * (2 if self._is_first() else 3)).sum()

    def _is_first(self):
        if self.place == "dictionary":
            return self.table.setdefault("own", new := self.make()) is new
        if self.place == "list":
            return not self.items and self.items.append(self.make()) is None
        if hasattr(self, "own"):
            return False
        self.own = self.make()
        return True


@pytest.mark.sampled(3)
@pytest.mark.parametrize("place", ["dictionary", "list", "attribute"])
@pytest.mark.parametrize("kind", OBJECTS)
def test_later_calls_find_what_the_first_has_left(kind, place):
    eager = First(OBJECTS[kind], place)
    ours = ORTModule(copy.deepcopy(eager))
    for rows in (2, 3, 2, 4):
        x = torch.randn(rows, dtype=torch.float64)
        torch.testing.assert_close(ours(x), eager(x))
    assert ours._engine.captures == 2


def _decimal(model):
    model.own += 1
    return float(model.own)


def _array(model):
    model.own = model.own + 1
    return float(model.own[0])


def _frozen(model):
    model.own = model.own | {len(model.own)}
    return len(model.own)


def _namespace(model):
    model.own = SimpleNamespace(value=model.own.value + 1)
    return model.own.value


class Counting(nn.Module):
    """Counts its calls in an object that it makes anew in each."""

    def __init__(self, own, count):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5, dtype=torch.float64))
        self.own, self.count = own, count

    def forward(self, x):
        return (x * self.scale * self.count(self)).sum()


@pytest.mark.parametrize(("own", "count"), [
    (Decimal(0), _decimal), (np.zeros(1), _array), (frozenset(), _frozen), (SimpleNamespace(value=0), _namespace),
])  # fmt: skip
def test_a_call_that_would_compute_with_what_the_one_before_has_left_is_refused(own, count):
    eager = Counting(own, count)
    ours, x = ORTModule(copy.deepcopy(eager)), torch.randn(3, dtype=torch.float64)
    torch.testing.assert_close(ours(x), eager(x))
    with pytest.raises(OntrainError, match="an object that the call before has left in the attribute 'own'"):
        ours(x)


def test_objects_that_no_call_reads_cost_one_capture():
    class Noting(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale, self.note = nn.Parameter(torch.tensor(1.5, dtype=torch.float64)), None

        def forward(self, x):
            self.note = SimpleNamespace(rows=7)
            return (x * self.scale).sum()

    ours = ORTModule(Noting())
    for rows in (2, 3, 4):
        x = torch.randn(rows, dtype=torch.float64)
        torch.testing.assert_close(ours(x), x.sum() * 1.5)
    assert ours._engine.captures == 1


def test_a_trainer_refuses_a_first_call_that_is_another():
    class Loss(First):
        def forward(self, x):
            return super().forward(x).square()

    description = {"inputs": [("x", ["rows"])], "outputs": [("loss", [], True)]}
    trainer = ORTTrainer(Loss(OBJECTS["set"], "attribute"), description, optim.SGDConfig(lr=0.1))
    with pytest.raises(CaptureError, match="forward computes with the attribute 'own' of Loss, which it writes itself"):
        trainer.train_step(torch.randn(3, dtype=torch.float64))


class Growing(nn.Module):
    """Computes with a list that each call makes longer."""

    def __init__(self, numbers):
        super().__init__()
        self.scale, self.sizes = nn.Parameter(torch.tensor(1.5, dtype=torch.float64)), list(numbers)

    def forward(self, x):
        self.sizes.append(x.shape[0])
        return (x * self.scale).sum() * sum(self.sizes)


@pytest.mark.parametrize("numbers", [[], [1.5]])
def test_a_list_of_numbers_that_grows_and_is_computed_with_is_refused_with_its_line(numbers):
    with pytest.raises(CaptureError, match="what its earlier calls have added to a list") as refusal:
        ORTModule(Growing(numbers))(torch.randn(3, dtype=torch.float64))
    assert "self.sizes.append(x.shape[0])" in str(refusal.value)


def counted(x):
    if not hasattr(counted, "table"):
        counted.table = {}
        counted.calls = 0
    counted.calls += 1
    return x * counted.calls * counted.factor


counted.factor = 2


class ByFunction(nn.Module):
    """Computes with attributes of a function, one of which counts its calls."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5, dtype=torch.float64))

    def forward(self, x):
        return counted(x) * self.scale


def test_attributes_of_functions_are_followed_and_written():
    ours = ORTModule(ByFunction())
    for calls, factor in enumerate((2, 2, 3, 2), 1):
        counted.factor = factor
        x = torch.randn(2 + calls, dtype=torch.float64)
        torch.testing.assert_close(ours(x), x * calls * factor * 1.5)
        assert counted.calls == calls
