"""Tensors that a call leaves in the module for the next: eager's numbers, or a refusal, and never a gradient less."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn

from ontrain.errors import OntrainError
from ontrain.training.ortmodule import ORTModule
from tests.training.ortmodule.networks import assert_same_gradients, pair

DTYPE = torch.float64


class InBuffer(nn.Module):
    """A recurrent layer whose state is a buffer."""

    def __init__(self, keep=lambda new: new, in_place=False):
        super().__init__()
        self.layer, self.keep, self.in_place = nn.Linear(3, 3), keep, in_place
        self.register_buffer("hidden", torch.zeros(4, 3))

    def forward(self, x):
        new = torch.tanh(self.layer(x) + self.hidden)
        if self.in_place:
            self.hidden.copy_(self.keep(new))
        else:
            self.hidden = self.keep(new)
        return new * 1.0


class InAttribute(nn.Module):
    """The same with a plain attribute, and another one that forward only leaves for others."""

    def __init__(self, start=None):
        super().__init__()
        self.layer, self.hidden, self.seen = nn.Linear(3, 3), start, None

    def forward(self, x):
        before = torch.zeros_like(x) if self.hidden is None else self.hidden[0]
        self.hidden = (torch.tanh(self.layer(x) + before),)
        self.seen = self.hidden[0].detach()
        return self.hidden[0] * 1.0


def rows(seed=0, count=4):
    return torch.randn(count, 3, dtype=DTYPE, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("in_place", [False, True])
def test_a_gradient_that_would_pass_from_call_to_call_through_a_buffer_is_refused(in_place):
    model = ORTModule(InBuffer(in_place=in_place).double(), fallback="FALLBACK_FORCE_TORCH_FORWARD")
    loss = model(rows()).sum()
    with pytest.raises(OntrainError, match="reads buffer 'hidden', which the call before left with a gradient"):
        model(rows(1))
    loss.backward()
    model(rows(1)).sum().backward()  # which eager PyTorch refuses, unless somebody detaches the buffer in between


def test_a_buffer_that_is_set_anew_or_detached_trains_as_in_eager():
    ours, eager = pair(InBuffer(lambda new: new.detach()).double())
    for module in (ours, eager):
        sum(module(rows(step)).square().sum() for step in range(3)).backward()
    assert_same_gradients(ours, eager)
    ours, eager = pair(InBuffer(in_place=True).double())
    with torch.no_grad():
        ours(rows()), eager(rows())
    for module in (ours, eager):
        module(rows(1)).square().sum().backward()
    torch.testing.assert_close(ours.hidden, eager.hidden.detach())
    assert_same_gradients(ours, eager)


@pytest.mark.parametrize("start", [None, (torch.zeros(4, 3, dtype=DTYPE),)], ids=["none", "tensor"])
def test_a_state_in_an_attribute_may_be_set_anew(start):
    ours, eager = pair(InAttribute(start).double())
    for step in range(3):
        for module in (ours, eager):
            module.hidden = start
            module(rows(step)).square().sum().backward()
        assert_same_gradients(ours, eager)
    torch.testing.assert_close(ours.module.hidden, eager.hidden)


@pytest.mark.parametrize("start", [None, (torch.zeros(4, 3, dtype=DTYPE),)], ids=["none", "tensor"])
def test_gradients_pass_through_a_state_in_an_attribute_until_backward_has_been_there(start):
    ours, eager = pair(InAttribute(start).double())
    for module in (ours, eager):
        sum(module(rows(step)).square().sum() for step in range(3)).backward()
    assert_same_gradients(ours, eager)
    for module in (ours, eager):
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            module(rows()).sum().backward()


class Recurrent(nn.Module):
    """Keeps its state in an attribute, and learns where it begins."""

    def __init__(self, cell):
        super().__init__()
        self.cell, self.head, self.hidden = cell, nn.Linear(3, 2), None
        self.begin = nn.Parameter(torch.ones(1, 3))

    def forward(self, x):
        hidden = self.cell(x, self.hidden)
        self.hidden = hidden
        return self.head(hidden if isinstance(hidden, torch.Tensor) else hidden[0])


def given_tensors(module, step):
    module.hidden = None if step % 3 == 0 else rows(step) / 2


def given_equal_tensors(module, step):
    module.hidden = torch.zeros(4, 3, dtype=DTYPE)


def given_its_own_values(module, step):
    if module.hidden is not None:
        module.hidden = module.hidden.detach()


def given_what_it_learns(module, step):
    module.hidden = module.begin.expand(4, 3) * 1.0


@pytest.mark.sampled(2)
@pytest.mark.parametrize("prepare", [given_tensors, given_equal_tensors, given_its_own_values, given_what_it_learns])
def test_a_call_reads_the_state_that_it_is_given_and_leaves_its_own(prepare):
    ours, eager = pair(Recurrent(nn.GRUCell(3, 3)).double())
    for step in range(5):
        for module in (ours, eager):
            prepare(module, step)
            module(rows(step)).square().sum().backward()
        torch.testing.assert_close(ours.module.hidden, eager.hidden)
        assert_same_gradients(ours, eager)
    if prepare is given_equal_tensors:
        assert ours._engine.captures == 2


def test_a_state_of_several_tensors_is_read_and_left_as_well():
    ours, eager = pair(Recurrent(nn.LSTMCell(3, 3)).double())
    for step in range(4):
        for module in (ours, eager):
            module.hidden = None if step == 2 or module.hidden is None else tuple(t.detach() for t in module.hidden)
            module(rows(step)).square().sum().backward()
        torch.testing.assert_close(ours.module.hidden, eager.hidden)
        assert_same_gradients(ours, eager)


@pytest.mark.parametrize("model", [InBuffer, InAttribute])
def test_in_pieces_gradients_pass_from_call_to_call(model):
    eager = model().double()
    ours = ORTModule(copy.deepcopy(eager), breaks="allow")
    for module in (ours, eager):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sum(module(rows(step)).square().sum() for step in range(3)).backward()
    assert_same_gradients(ours, eager)


class WithAuxiliaryLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.auxiliaries, self.table = nn.Linear(3, 3), [], None

    def forward(self, x):
        if self.table is None:
            self.table = torch.arange(3.0, dtype=x.dtype)
        y = self.layer(x)
        self.auxiliaries = ["square", y.square().mean()]
        return y * self.table


def test_a_loss_beside_a_text_and_a_table_are_left_as_in_eager():
    ours, eager = pair(WithAuxiliaryLoss().double())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for seed, count in enumerate((4, 5, 4)):
            for module, inner in ((ours, ours.module), (eager, eager)):
                loss = module(rows(seed, count)).sum()
                text, auxiliary = inner.auxiliaries
                (loss + auxiliary).backward()
                assert text == "square"
            torch.testing.assert_close(ours.module.table, eager.table)
    assert_same_gradients(ours, eager)


class Shared(nn.Module):
    """A part that stands at two places, and in both an attribute and a counter."""

    def __init__(self):
        super().__init__()
        self.first, self.calls = InAttribute(), 0
        self.first.calls, self.second = 0, nn.ModuleList([self.first])

    def forward(self, x):
        self.first.hidden, self.calls = None, self.calls + 1
        self.first.calls += 1
        return self.second[0](x)


def test_a_part_at_two_places_may_leave_tensors_and_count():
    model, eager = pair(Shared().double())
    for seed in range(3):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model(rows(seed)).sum().backward()
        eager(rows(seed)).sum().backward()
    assert_same_gradients(model, eager)
    wrapped = model.module
    assert (wrapped.calls, wrapped.first.calls) == (eager.calls, eager.first.calls) == (3, 3)
