"""A forward that writes to parameters: frozen ones that follow others, trained ones that keep to some norm."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from ontrain.errors import CaptureError
from ontrain.training import ORTTrainer, optim
from ontrain.training.ortmodule import ORTModule


def in_place(own, other):
    own.mul_(0.9).add_(other, alpha=0.1)


def through_data(own, other):
    own.data = own.data * 0.9 + other.data * 0.1


def by_copy(own, other):
    own.data.copy_(own * 0.9 + other * 0.1)


def interpolated(own, other):
    torch._foreach_lerp_([own], [other.detach()], 0.1)


class Contrastive(nn.Module):
    """MoCo: an encoder, another that follows it, and a queue of what the other said of earlier batches."""

    def __init__(self, follow):
        super().__init__()
        self.leader = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
        self.follower = copy.deepcopy(self.leader).requires_grad_(False)
        self.register_buffer("queue", functional.normalize(torch.randn(16, 3)))
        self.register_buffer("place", torch.zeros(1, dtype=torch.long))
        self.register_buffer("scale", torch.ones(()))
        self.follow = follow

    @torch.no_grad()
    def _move(self, keys):
        start = int(self.place)
        self.queue[start : start + len(keys)] = keys
        self.place[0] = (start + len(keys)) % len(self.queue)

    def forward(self, x, other):
        self.scale.data = self.scale.data * 0.99
        query = functional.normalize(self.leader(x))
        with torch.no_grad():
            for own, parameter in zip(self.follower.parameters(), self.leader.parameters(), strict=True):
                self.follow(own, parameter)
            keys = functional.normalize(self.follower(other))
        like = (query * keys).sum(1, keepdim=True)
        logits = torch.cat([like, query @ self.queue.clone().detach().t()], 1) * self.scale / 0.07
        self._move(keys)
        return functional.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long))


@pytest.mark.parametrize("follow", [in_place, through_data, by_copy, interpolated])
@pytest.mark.sampled(2)
def test_an_encoder_that_follows_another_in_forward(follow):
    torch.manual_seed(0)
    eager = Contrastive(follow).double()
    model = copy.deepcopy(eager)
    wrapped = ORTModule(model)
    for module, owner in ((eager, eager), (wrapped, model)):
        optimizer = torch.optim.SGD(owner.leader.parameters(), lr=0.1)
        for step in range(5):
            x = torch.randn(4, 6, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
            optimizer.zero_grad()
            module(x, x * 1.1).backward()
            optimizer.step()
    torch.testing.assert_close(model.state_dict(), eager.state_dict(), rtol=1e-9, atol=1e-11)
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in eager.named_parameters()]


def clamped(layer):
    with torch.no_grad():
        layer.weight.clamp_(-0.1, 0.1)


def normalised(layer):
    layer.weight.data = functional.normalize(layer.weight.data)


def a_row(layer):
    with torch.no_grad():
        layer.weight.mul_(0.5)
        layer.weight[0].zero_()
        layer.bias.sub_(layer.bias.mean())


def smaller(layer):
    layer.weight.data.mul_(0.9)


def shortened(layer):
    with torch.no_grad():
        layer.weight.renorm_(2, 0, 0.3)


class Rewriting(nn.Module):
    """Keeps its weights to some norm before it reads them."""

    def __init__(self, write):
        super().__init__()
        self.layer, self.head, self.write = nn.Linear(6, 4), nn.Linear(4, 2), write

    def forward(self, x):
        self.write(self.layer)
        return self.head(self.layer(x).tanh())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("write", [clamped, normalised, a_row, smaller, shortened])
def test_a_trained_parameter_gets_the_gradient_of_its_new_value(write):
    eager = Rewriting(write).double()
    model = copy.deepcopy(eager)
    wrapped = ORTModule(model)
    optimizers = [torch.optim.SGD(owner.parameters(), lr=0.1, momentum=0.9) for owner in (eager, model)]
    for step in range(4):
        x = torch.randn(3 + step % 2, 6, dtype=torch.float64)
        for module, optimizer in zip((eager, wrapped), optimizers, strict=True):
            optimizer.zero_grad()
            module(x).square().sum().backward()
            optimizer.step()
        torch.testing.assert_close(model.state_dict(), eager.state_dict(), rtol=1e-10, atol=1e-12)
    assert len(wrapped._engine.entries) == 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("norm_type", [2.0, 1.0, 3.0, float("inf")])
@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_rows_of_a_table_that_are_too_long_are_shortened_when_they_are_looked_up(kind, norm_type):
    eager = nn.Sequential(kind(7, 3, max_norm=0.5, norm_type=norm_type), nn.Linear(3, 2)).double()
    model = copy.deepcopy(eager)
    wrapped = ORTModule(model)
    optimizers = [torch.optim.SGD(owner.parameters(), lr=0.3) for owner in (eager, model)]
    for step in range(3):
        ids = torch.randint(0, 7, (3, 4 + step))
        for module, optimizer in zip((eager, wrapped), optimizers, strict=True):
            optimizer.zero_grad()
            module(ids).square().sum().backward()
            optimizer.step()
        torch.testing.assert_close(model.state_dict(), eager.state_dict(), rtol=1e-10, atol=1e-12)


def test_a_trainer_changes_parameters_by_its_optimizer_only():
    sizes = {"inputs": [("x", ["batch", 6]), ("y", ["batch", 2])], "outputs": [("loss", [], True), ("z", ["batch", 2])]}
    trainer = ORTTrainer(Rewriting(clamped), sizes, optim.SGDConfig(lr=0.1), functional.mse_loss)
    with pytest.raises(CaptureError, match=r"forward writes to parameter '.*layer.weight'"):
        trainer.train_step(torch.randn(2, 6), torch.randn(2, 2))
