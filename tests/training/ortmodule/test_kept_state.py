"""State that forward keeps in attributes, lists, dictionaries and objects, and reads in its next call: as in eager."""

from __future__ import annotations

import copy
import types
from collections import deque

import pytest
import torch
from torch import nn

from ontrain.errors import CaptureError, OntrainError
from ontrain.training.ortmodule import ORTModule
from tests.training.ortmodule.networks import assert_same_gradients, pair

DTYPE = torch.float64


def zeros(*shape):
    return torch.zeros(shape, dtype=DTYPE)


def rows(step, count=3):
    return torch.randn(count, 4, dtype=DTYPE, generator=torch.Generator().manual_seed(step))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)


class Cell(Layer):
    def __init__(self):
        super().__init__()
        self.cell, self.state = nn.GRUCell(4, 4), zeros(3, 4)

    def forward(self, x):
        self.state = self.cell(x, self.state.detach())
        return self.layer(self.state)


class Recurrent(Layer):
    """Begins with nothing, and cuts the gradient at the end of a call."""

    def __init__(self):
        super().__init__()
        self.lstm, self.state = nn.LSTM(4, 4), None

    def forward(self, x):
        y, state = self.lstm(x[None], self.state)
        self.state = tuple(part.detach() for part in state)
        return self.layer(y[0])


class Average(Layer):
    def __init__(self):
        super().__init__()
        self.state = 0.0

    def forward(self, x):
        y = self.layer(x)
        self.state = 0.9 * self.state + 0.1 * y.detach().mean(0)
        return y - self.state


class Unread(Average):
    """Nothing of what it returns depends on the average."""

    def forward(self, x):
        return super().forward(x) + self.state


class InDictionary(Layer):
    def __init__(self):
        super().__init__()
        self.state = {}

    def forward(self, x):
        y, before = self.layer(x), self.state.get("mean")
        mean = y.detach().mean(0)
        self.state["mean"] = mean if before is None else 0.5 * before + 0.5 * mean
        return y * self.state["mean"]


class InNewDictionary(Layer):
    def __init__(self):
        super().__init__()
        self.state = {"mean": zeros(4)}

    def forward(self, x):
        y = self.layer(x) - self.state["mean"]
        self.state = {"mean": y.detach().mean(0), "last": x}
        return y


class InList(Layer):
    def __init__(self):
        super().__init__()
        self.state = [zeros(4), zeros(4) + 1]

    def forward(self, x):
        y = self.layer(x)
        for place in range(2):
            self.state[place] = 0.9 * self.state[place] + 0.1 * y.detach().mean(0)
        return y * self.state[0] + self.state[1]


class InQueue(Layer):
    def __init__(self):
        super().__init__()
        self.state = deque(maxlen=2)

    def forward(self, x):
        y = self.layer(x)
        self.state.append(y.detach().mean(0))
        return y - torch.stack(list(self.state)).mean(0)


class Metric:
    def __init__(self):
        self.total, self.count = zeros(), torch.zeros((), dtype=torch.int64)

    def update(self, values):
        self.total = self.total + values.sum()
        self.count = self.count + values.numel()


class WithMetric(Layer):
    def __init__(self):
        super().__init__()
        self.state = Metric()

    def forward(self, x):
        y = self.layer(x)
        self.state.update(y.detach())
        return y * self.state.total / self.state.count


class InNamespace(Layer):
    def __init__(self):
        super().__init__()
        self.state = types.SimpleNamespace(mean=zeros(4), calls="none")

    def forward(self, x):
        y = self.layer(x) + self.state.mean
        self.state = types.SimpleNamespace(mean=y.detach().mean(0), calls="some")
        return y


class Growing(Layer):
    """Keeps all rows that there were."""

    def __init__(self):
        super().__init__()
        self.state = zeros(1, 4)

    def forward(self, x):
        y = self.layer(x)
        out = y + self.state.mean(0)
        self.state = torch.cat([self.state, y.detach()])
        return out


class Complex(Layer):
    def __init__(self):
        super().__init__()
        self.state = torch.zeros(4, dtype=torch.complex128)

    def forward(self, x):
        y = self.layer(x) + self.state.real
        self.state = self.state * 0.5j + y.detach().mean(0)
        return y


class OfClass(Layer):
    state = zeros()

    def forward(self, x):
        y = self.layer(x)
        type(self).state = type(self).state + y.detach().mean()
        return y - type(self).state


def tensors_of(value):
    if isinstance(value, torch.Tensor):
        return [value.detach().clone()]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple, deque)) else None
    return [tensor for item in (vars(value).values() if items is None else items) if not isinstance(item, str)
            for tensor in tensors_of(item)]  # fmt: skip


def steps(model, own, reset=None):
    """Five steps of two sizes, and the state after each."""
    optimizer, left = torch.optim.SGD(model.parameters(), lr=0.1), []
    for step in range(5):
        if reset is not None and step % 2 == 0:
            reset(own)
        optimizer.zero_grad()
        loss = model(rows(step, 3 if isinstance(own, Cell | Recurrent) else 3 + step % 2)).square().mean()
        loss.backward()
        optimizer.step()
        left.append([loss.detach(), *tensors_of(own.state)])
    return left


KINDS = [
    Cell, Recurrent, Average, Unread, InDictionary, InNewDictionary, InList, InQueue, WithMetric, InNamespace, Growing,
    Complex,
]  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
def test_a_state_is_read_and_left_as_in_eager(kind):
    ours, eager = pair(kind().double())
    torch.testing.assert_close(steps(ours, ours.module), steps(eager, eager), rtol=1e-9, atol=1e-11)
    assert_same_gradients(ours, eager)
    assert ours._engine.captures <= 5


def test_a_state_in_a_class_is_read_and_left_as_in_eager():
    ours, eager = pair(OfClass().double())
    lefts = []
    for model, own in ((ours, ours.module), (eager, eager)):
        OfClass.state = zeros()
        lefts.append(steps(model, own))
    torch.testing.assert_close(*lefts, rtol=1e-9, atol=1e-11)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("kind", "begin"), [
    (Recurrent, lambda: None), (InDictionary, dict), (WithMetric, Metric), (Cell, lambda: zeros(3, 4) + 1),
    (InList, lambda: [zeros(4), zeros(4)]),
])  # fmt: skip
def test_a_loop_may_let_the_state_begin_anew(kind, begin):
    ours, eager = pair(kind().double())

    def reset(module):
        module.state = begin()

    torch.testing.assert_close(steps(ours, ours.module, reset), steps(eager, eager, reset), rtol=1e-9, atol=1e-11)
    assert_same_gradients(ours, eager)


def test_a_new_dictionary_is_a_new_object_and_one_that_is_written_to_stays():
    ours, _ = pair(InNewDictionary().double())
    before = ours.state
    ours(rows(0))
    assert ours.module.state is not before and torch.equal(before["mean"], zeros(4))
    ours, _ = pair(InDictionary().double())
    before = ours.state
    for step in range(3):
        ours(rows(step))
        assert ours.module.state is before and len(before) == 1


class WithStart(Layer):
    """Learns where it begins."""

    def __init__(self):
        super().__init__()
        self.cell, self.state, self.begin = nn.RNNCell(4, 4), None, nn.Parameter(torch.ones(1, 4))

    def forward(self, x):
        self.state = self.cell(x, self.begin.expand(len(x), 4) if self.state is None else self.state)
        return self.layer(self.state)


@pytest.mark.parametrize("length", [1, 2, 3])
def test_gradients_pass_through_several_calls_up_to_where_the_loop_cuts_them(length):
    ours, eager = pair(WithStart().double())
    for model, own in ((ours, ours.module), (eager, eager)):
        optimizer, loss = torch.optim.SGD(model.parameters(), lr=0.1), 0.0
        for step in range(6):
            loss = loss + model(rows(step)).square().mean()
            if step % length == length - 1:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                own.state, loss = own.state.detach(), 0.0
    assert_same_gradients(ours, eager)


class WithLoss(Average):
    def forward(self, x):
        y = super().forward(x)
        return {"loss": y.square().mean(), "logits": y}


def test_a_state_beside_a_loss_is_the_one_before_the_optimizers_step():
    ours, eager = pair(WithLoss().double())
    for model, own in ((ours, ours.module), (eager, eager)):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(4):
            optimizer.zero_grad()
            model(rows(step))["loss"].backward()
            optimizer.step()
            with torch.no_grad():
                own.layer.weight.mul_(0.9)
    torch.testing.assert_close(ours.module.state, eager.state, rtol=1e-9, atol=1e-11)
    assert_same_gradients(ours, eager)


def test_a_copy_goes_on_with_a_state_of_its_own():
    ours, eager = pair(Average().double())
    for model in (ours, eager):
        model(rows(0)).sum().backward()
    others = copy.deepcopy(ours), copy.deepcopy(eager)
    for step in range(3):
        torch.testing.assert_close(others[0](rows(step)), others[1](rows(step)))
        torch.testing.assert_close(ours(rows(step) + 1), eager(rows(step) + 1))
    torch.testing.assert_close(others[0].module.state, others[1].state)


class InGrowingList(Layer):
    def __init__(self):
        super().__init__()
        self.state = []

    def forward(self, x):
        y = self.layer(x)
        self.state.append(y.detach().mean(0))
        return y - torch.stack(self.state).mean(0)


class BesideAnObject(Layer):
    def __init__(self):
        super().__init__()
        self.state = None

    def forward(self, x):
        y = self.layer(x) if self.state is None else self.layer(x) + self.state[0]
        self.state = (y.detach().mean(0), object())
        return y


def test_a_list_that_grows_and_what_is_no_tensor_are_refused():
    with pytest.raises(CaptureError, match="keeps a tensor from call to call in a list"):
        ORTModule(InGrowingList().double())(rows(0))
    ours = ORTModule(BesideAnObject().double())
    ours(rows(0))
    with pytest.raises(OntrainError, match="keeps a tensor from call to call in the attribute 'state'"):
        ours(rows(1))
