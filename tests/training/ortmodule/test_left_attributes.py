"""Tensors that forward leaves in attributes for whoever reads them: auxiliary losses, attention maps."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from ontrain.training.ortmodule import ORTModule


class Part(nn.Module):
    def __init__(self, begun):
        super().__init__()
        self.layer = nn.Linear(6, 6)
        if begun:
            self.loss = 0.0

    def forward(self, x):
        mean = self.layer(x)
        self.loss = mean.square().mean()
        self.hidden = mean.tanh()
        return x + mean


class Model(nn.Module):
    def __init__(self, result, begun):
        super().__init__()
        self.parts = nn.ModuleList([Part(begun), Part(begun)])
        self.head, self.result = nn.Linear(6, 3), result

    def forward(self, x):
        for part in self.parts:
            x = part(x)
        logits = self.head(x)
        self.logits = logits
        labels = torch.zeros(len(logits), dtype=torch.long)
        results = {"logits": logits, "loss": functional.cross_entropy(logits, labels)}
        return results if self.result == "both" else results[self.result]


def total(module, model, x):
    result = module(x)
    if isinstance(result, dict):
        result = result["loss"] + result["logits"].square().sum()
    auxiliary = sum(part.loss for part in model.parts)
    return result.sum() + auxiliary + model.parts[1].hidden.mean() + model.logits.mean()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("result", ["logits", "loss", "both"])
def test_a_loop_may_read_them_and_differentiate_by_them(result, begun):
    eager = Model(result, begun).double()
    model = copy.deepcopy(eager)
    wrapped = ORTModule(model)
    for step in range(4):
        x = torch.randn(3 + step % 2, 6, dtype=torch.float64)
        losses = []
        for module, owner in ((eager, eager), (wrapped, model)):
            owner.zero_grad()
            loss = total(module, owner, x)
            loss.backward()
            losses.append((loss.detach(), [parameter.grad for parameter in owner.parameters()]))
        torch.testing.assert_close(losses[1], losses[0], rtol=1e-9, atol=1e-11)
        with torch.no_grad():
            torch.testing.assert_close(total(wrapped, model, x), total(eager, eager, x))
    assert wrapped._engine.captures == 1
    model.eval()
    eager.eval()
    torch.testing.assert_close(total(wrapped, model, x).detach(), total(eager, eager, x).detach())


class Shrinking(Part):
    """Writes to its weight, if it is told to, beside what it leaves."""

    def forward(self, x, shrinks=False):
        if shrinks:
            with torch.no_grad():
                self.layer.weight.mul_(0.9)
        return super().forward(x)


def test_a_module_that_has_left_some_may_be_run_by_a_copy():
    eager = Shrinking(begun=True)
    wrapped, x = ORTModule(copy.deepcopy(eager)), torch.randn(4, 6)
    for shrinks in (False, True, False):
        torch.testing.assert_close(wrapped(x, shrinks), eager(x, shrinks))
    torch.testing.assert_close(wrapped.state_dict(), eager.state_dict())


def test_what_is_left_does_not_keep_a_copy_of_the_module_from_being_made():
    eager = Model("both", True)
    wrapped = ORTModule(eager)
    wrapped(torch.randn(2, 6))
    wrapped.train(False)
    wrapped(torch.randn(3, 6))["loss"].backward()
    assert eager.parts[0].loss.requires_grad and not eager.parts[0].loss.is_leaf


class Watched(nn.Module):
    """Leaves what nothing differentiates, and containers of tensors that it makes anew."""

    def __init__(self):
        super().__init__()
        self.layer, self.shares, self.maps, self.history = nn.Linear(6, 6), None, [], []

    def forward(self, x, appends=False):
        hidden = self.layer(x)
        shares = hidden.softmax(-1)
        self.shares, self.seen = shares.detach(), x
        self.maps = [shares.detach(), {"hidden": hidden, "best": hidden.argmax(-1)}]
        self.norms = {"hidden": hidden.norm()}
        if appends:
            self.history.append(shares.detach())
        return (shares * hidden).sum()


def test_values_without_gradients_and_containers_are_left_too():
    eager = Watched()
    model = copy.deepcopy(eager)
    wrapped = ORTModule(model)
    for step in range(4):
        x = torch.randn(3 + step % 2, 6)
        for module, owner in ((eager, eager), (wrapped, model)):
            loss = module(x) + owner.norms["hidden"] + owner.maps[1]["hidden"].square().sum()
            loss.backward()
        for name in ("shares", "seen", "maps", "norms"):
            torch.testing.assert_close(getattr(model, name), getattr(eager, name))
        assert not model.shares.requires_grad and model.norms["hidden"].requires_grad
    torch.testing.assert_close(model.layer.weight.grad, eager.layer.weight.grad)
    assert wrapped._engine.captures == 1
    with torch.no_grad():
        wrapped(x * 2), eager(x * 2)
    torch.testing.assert_close(model.maps, eager.maps)


def test_a_list_grows_as_in_eager():
    eager = Watched()
    model = copy.deepcopy(eager)
    wrapped = ORTModule(model)
    for step in range(3):
        x = torch.randn(2 + step % 2, 6)
        wrapped(x, True), eager(x, True)
    torch.testing.assert_close(model.history, eager.history)
    assert len(model.history) == 3
    assert wrapped._engine.captures == 1


class Padded(nn.Module):
    """Remembers for each length what it padded by, and where what it padded lies, and both lengths of the last call."""

    def __init__(self):
        super().__init__()
        self.layer, self.widths, self.places, self.last = nn.Conv1d(2, 2, 3), {}, {}, None

    def forward(self, x):
        key = str(list(x.shape[2:]))
        if key not in self.widths:
            self.widths[key] = [2, 2]
            self.places[key] = (Ellipsis, slice(1, -1, None))
        y = self.layer(functional.pad(x, self.widths[key]))[self.places[key]]
        self.last = slice(x.shape[2], y.shape[2]), range(3)
        return y.square().mean()


def test_slices_that_forward_remembers_are_there_in_later_calls():
    eager = Padded().double()
    model = copy.deepcopy(eager)
    wrapped = ORTModule(model)
    for rows, length in ((2, 5), (3, 5), (2, 7), (4, 5), (2, 9)):
        x = torch.randn(rows, 2, length, dtype=torch.float64)
        torch.testing.assert_close(wrapped(x), eager(x))
        assert (model.widths, model.places, model.last) == (eager.widths, eager.places, eager.last)
