"""Buffers that the backward of one call reads, and another call writes to before that."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from ontrain.errors import InputError
from ontrain.training.compiled import ontrain
from ontrain.training.ortmodule import ORTModule


class Scoring(nn.Module):
    """Compares keys with a queue of earlier keys, as it is now."""

    def __init__(self, layer, queue):
        super().__init__()
        self.layer = layer
        self.register_buffer("queue", queue)

    def forward(self, x):
        keys = self.layer(x)
        return keys, keys @ self.queue.clone().detach()


class Queueing(nn.Module):
    """Puts the latest key into the queue."""

    def __init__(self, queue):
        super().__init__()
        self.last = nn.Linear(8, 3)
        self.register_buffer("queue", queue)

    def forward(self, keys, scores):
        with torch.no_grad():
            self.queue[:, 1:2] = keys[:1].T
        return self.last(scores)


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        queue = torch.randn(4, 8)
        self.first, self.second = Scoring(nn.Linear(6, 4), queue), Queueing(queue)

    def forward(self, x):
        return self.second(*self.first(x))


class Queue(nn.Module):
    """Scores and queue in one forward, between which a number is read."""

    def __init__(self):
        super().__init__()
        self.layer, self.last = nn.Linear(6, 4), nn.Linear(8, 3)
        self.register_buffer("queue", torch.randn(4, 8))
        self.register_buffer("place", torch.zeros(1, dtype=torch.long))

    def forward(self, x):
        keys = self.layer(x)
        scores = keys @ self.queue.clone().detach()
        place = int(self.place)
        with torch.no_grad():
            self.queue[:, place : place + 1] = keys[:1].T
            self.place[0] = (place + 1) % 8
        return self.last(scores)


def wrapped(pair):
    pair.first, pair.second = ORTModule(pair.first), ORTModule(pair.second)
    return pair


def compiled_by_ontrain(module):
    torch._dynamo.reset()
    return torch.compile(module, backend=ontrain)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("kind", "train"), [(Pair, wrapped), (Queue, compiled_by_ontrain)])
@pytest.mark.parametrize("calls", [1, 2])
def test_a_buffer_that_another_graph_writes_to_is_read_as_it_was_in_forward(kind, train, calls):
    eager = kind().double()
    if kind is Pair:
        eager.second.queue = eager.first.queue
    ours = copy.deepcopy(eager)
    model = train(ours)
    for _ in range(3):
        xs = torch.randn(calls, 5, 6, dtype=torch.float64)
        for module in (model, eager):
            module.zero_grad()
            sum(module(x).square().sum() for x in xs).backward()
        for mine, theirs in zip(ours.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-9, atol=1e-12)
        for mine, theirs in zip(ours.buffers(), eager.buffers(), strict=True):
            torch.testing.assert_close(mine, theirs)


def test_statistics_are_those_of_the_evaluation_though_training_changes_them_before_backward():
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).double()
    wanted = copy.deepcopy(model)
    ours = ORTModule(model)
    x, y = torch.randn(2, 5, 4, dtype=torch.float64)
    evaluated = ours.eval()(x)
    trained = ours.train()(y)
    (evaluated.square().sum() + trained.sin().sum()).backward()
    wanted.eval()(x).square().sum().backward()
    wanted.train()(y).sin().sum().backward()
    for mine, theirs in zip(model.parameters(), wanted.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(model.state_dict(), wanted.state_dict())


def test_autograd_learns_that_a_graph_has_written_to_a_buffer():
    queue = torch.randn(4, 8)
    ours = ORTModule(Queueing(queue))
    weight = torch.randn(4, 8, requires_grad=True)
    product = (weight * queue).sum()
    ours(torch.randn(5, 4), torch.randn(5, 8))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


class Uncopied(Scoring):
    def forward(self, x):
        keys = self.layer(x)
        return keys, keys @ self.queue


def test_a_buffer_that_the_program_changes_before_backward_is_refused_as_in_eager():
    eager = Uncopied(nn.Linear(6, 4), queue := torch.randn(4, 8))
    for module in (eager, ORTModule(eager)):
        _, scores = module(torch.randn(5, 6))
        queue.mul_(2)
        with pytest.raises((InputError, RuntimeError), match="modified by an inplace operation"):
            scores.sum().backward()


def test_a_buffer_that_forward_has_copied_may_be_changed_by_the_program():
    eager = Scoring(nn.Linear(6, 4), queue := torch.randn(4, 8))
    x, gradients = torch.randn(5, 6), []
    start = queue.clone()
    for module in (eager, ORTModule(eager)):
        queue.copy_(start)
        _, scores = module(x)
        queue.mul_(2)
        eager.zero_grad()
        scores.square().sum().backward()
        gradients.append([parameter.grad for parameter in eager.parameters()])
        assert torch.equal(queue, 2 * start)
    torch.testing.assert_close(gradients[1], gradients[0])
