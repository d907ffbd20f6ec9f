"""Forwards that write to their parameters before they read them: an ORTModule leaves there what eager leaves."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from ontrain.errors import CaptureError
from ontrain.training import optim
from ontrain.training.ortmodule import ORTModule
from ontrain.training.orttrainer import ORTTrainer
from tests.training.ortmodule.networks import assert_same_gradients, pair

DOUBLE = dict(rtol=1e-12, atol=1e-14)


def _by_data(module):
    module.first.weight.data = module.first.weight.data * module.mask


def _by_augmented_data(module):
    module.first.weight.data *= module.mask


def _in_place(module):
    module.first.weight.data.mul_(module.mask)


def _without_gradients(module):
    with torch.no_grad():
        module.first.weight.mul_(module.mask)


def _clamped(module):
    module.first.weight.data.clamp_(-0.1, 0.1)
    module.last.bias.data.clamp_(min=0)


def _a_column(module):
    module.first.weight.data[:, 0] = 0


def _shrunk(module):
    module.first.weight.data *= 0.9


def _shrunk_by_a_counter(module):
    module.calls += 1
    module.first.weight.data /= module.calls


def _by_second_names(module):
    module.first.weight.data.copy_(torch.multiply(torch.negative(module.first.weight.data), module.mask))


def _normalised(module):
    module.first.weight.data = nn.functional.normalize(module.first.weight.data, dim=1)


def _power_iteration(module):
    """Spectral norm as GANs have it, whose vector is a parameter that wants no gradient."""
    weight = module.first.weight
    module.u.data = nn.functional.normalize(weight.data @ (weight.data.t() @ module.u.data), dim=0)


WRITES = [_by_data, _by_augmented_data, _in_place, _without_gradients, _clamped, _a_column, _shrunk,
          _shrunk_by_a_counter, _by_second_names, _normalised, _power_iteration]  # fmt: skip


class Masked(nn.Module):
    def __init__(self, write, twice=False):
        super().__init__()
        self.first, self.last, self.write, self.twice = nn.Linear(6, 4), nn.Linear(4, 2), write, twice
        self.u = nn.Parameter(torch.randn(4), requires_grad=False)
        self.register_buffer("mask", torch.tensor([1.0, 0, 1, 0, 1, 1]).expand(4, 6).tril(2).clone())
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.write(self)
        h = self.first(x) / (self.u @ self.first.weight).norm()
        if self.twice:
            self.write(self)
            h = h + self.first(x)
        return self.last(h.relu())


@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.__name__.strip("_"))
@pytest.mark.sampled(2)
def test_parameters_buffers_and_gradients_are_eagers(write):
    ours, eager = pair(Masked(write).double())
    pointers = [parameter.data_ptr() for parameter in ours.parameters()]
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.1) for module in (ours, eager)]
    for batch in (3, 2, 3):
        x = torch.randn(batch, 6, dtype=torch.float64)
        for module, optimizer in zip((ours, eager), optimizers, strict=True):
            optimizer.zero_grad()
            module(x).square().sum().backward()
        assert_same_gradients(ours, eager, **DOUBLE)
        for optimizer in optimizers:
            optimizer.step()
    with torch.no_grad():
        torch.testing.assert_close(ours(x), eager(x), **DOUBLE)
    torch.testing.assert_close(dict(ours.module.state_dict()), dict(eager.state_dict()), **DOUBLE)
    assert [parameter.data_ptr() for parameter in ours.parameters()] == pointers


def test_two_forwards_go_before_their_backwards():
    ours, eager = pair(Masked(_in_place).double())
    x = torch.randn(2, 3, 6, dtype=torch.float64)
    for module in (ours, eager):
        (module(x[0]).square().sum() + module(x[1]).square().sum()).backward()
    assert_same_gradients(ours, eager, **DOUBLE)


class Branching(Masked):
    """Writes, and branches on values of the batch."""

    def forward(self, x):
        self.first.weight.data *= 0.9
        h = self.first(x)
        return self.last(h.relu() if h.sum() > 0 else -h)


def test_a_branch_on_values_writes_once_whichever_path_it_takes():
    ours, eager = pair(Branching(_in_place).double())
    signs = set()
    for seed in range(6):
        x = torch.randn(3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * (-1) ** seed * 3
        signs.add(bool(eager.first(x).sum() > 0))
        for module in (ours, eager):
            module(x).square().sum().backward()
        assert_same_gradients(ours, eager, **DOUBLE)
        torch.testing.assert_close(dict(ours.module.state_dict()), dict(eager.state_dict()), **DOUBLE)
    assert len(signs) == 2


class ByInputs(Masked):
    def forward(self, x):
        self.first.weight.data *= x.detach().abs().mean()
        return self.last(self.first(x))


@pytest.mark.parametrize(
    "module", [Masked(_in_place, twice=True), Masked(_shrunk, twice=True), ByInputs(_in_place)],
    ids=["read before", "read before, other values", "by inputs"],
)  # fmt: skip
def test_a_write_behind_a_read_or_by_inputs_leaves_what_eager_leaves(module):
    ours, eager = pair(module.double())
    for rows in (3, 2, 3):
        x = torch.randn(rows, 6, dtype=torch.float64)
        torch.testing.assert_close(ours(x), eager(x), **DOUBLE)
    torch.testing.assert_close(dict(ours.module.state_dict()), dict(eager.state_dict()), **DOUBLE)


class Shared(Masked):
    def forward(self, x):
        self.last.weight.data = self.u.data.expand(2, 4)
        return self.last(self.first(x))


def test_the_memory_of_another_is_refused_and_left_to_pieces():
    module, x = Shared(_in_place).double(), torch.randn(3, 6, dtype=torch.float64)
    with pytest.raises(CaptureError, match="other memory") as refusal:
        ORTModule(copy.deepcopy(module))(x)
    assert "test_writes_to_parameters.py" in str(refusal.value)
    pieces, eager = ORTModule(copy.deepcopy(module), breaks="allow"), copy.deepcopy(module)
    for batch in (x, x[:2]):
        torch.testing.assert_close(pieces(batch), eager(batch), **DOUBLE)


def test_orttrainer_refuses_such_a_forward():
    description = {"inputs": [("x", ["batch", 6])], "outputs": [("loss", [], True)]}
    trainer = ORTTrainer(nn.Sequential(Masked(_in_place), nn.Flatten(0), Mean()), description, optim.SGDConfig(), None)
    with pytest.raises(CaptureError, match="forward writes to parameter '0.first.weight'"):
        trainer.train_step(torch.randn(3, 6))


class Mean(nn.Module):
    def forward(self, x):
        return x.mean()
