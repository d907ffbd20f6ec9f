"""A forward that has gradients recorded for itself has them recorded where its caller says otherwise."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from ontrain.training.ortmodule import ORTModule


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return self.layer(x).tanh()


class Enabled(Plain):
    @torch.enable_grad()
    def forward(self, x):
        return super().forward(x)


class Set(Plain):
    @torch.set_grad_enabled(True)
    def forward(self, x):
        return super().forward(x)


class Outer(Plain):
    @torch.no_grad()
    @torch.enable_grad()
    def forward(self, x):
        return super().forward(x)


class Inner(Plain):
    @torch.enable_grad()
    @torch.no_grad()
    def forward(self, x):
        return super().forward(x)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", [Plain, Enabled, Set, Outer, Inner])
@pytest.mark.parametrize("around", [torch.no_grad, torch.enable_grad])
def test_results_want_gradients_where_eagers_do(kind, around):
    eager = kind()
    ours = ORTModule(copy.deepcopy(eager))
    for rows in (2, 3, 2):
        x = torch.randn(rows, 3)
        with around():
            expected, actual = eager(x), ours(x)
        torch.testing.assert_close(actual, expected)
        assert actual.requires_grad == expected.requires_grad
        if expected.requires_grad:
            gradients = [torch.autograd.grad(y.sum(), m.parameters()) for y, m in ((actual, ours), (expected, eager))]
            torch.testing.assert_close(*gradients)


class Block(Plain):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(2, 2)
        self.register_buffer("total", torch.zeros(2))

    def forward(self, x):
        hidden = self.layer(x).tanh()
        with torch.enable_grad():
            scores = self.head(hidden) * self.total.exp()
            with torch.no_grad():
                gate = self.layer(x)
            gated = scores * gate
        self.total += hidden.detach().mean(0)
        return {"hidden": hidden, "scores": scores, "gate": gate, "gated": gated, "sum": gated.sum(), "x": x}


class Forces(Plain):
    def forward(self, x):
        with torch.set_grad_enabled(True):
            x = x.detach().requires_grad_()
            energy = self.layer(x).tanh().square().sum()
            (force,) = torch.autograd.grad(energy, x, create_graph=True)
        return energy, force


class Restored(Plain):
    def forward(self, x):
        before = torch.is_grad_enabled()
        torch.set_grad_enabled(True)
        y = super().forward(x)
        torch.set_grad_enabled(before)
        return y, y * 2


class Opposite(Plain):
    def forward(self, x):
        with torch.set_grad_enabled(not torch.is_grad_enabled()):
            return super().forward(x)


class Inferred(Block):
    @torch.inference_mode()
    def scale(self):
        return self.head.weight.sum()

    def forward(self, x):
        with torch.inference_mode():
            gate = self.layer(x)
        return self.layer(x).tanh().sum(), gate, self.scale().item() * self.head(x[:, :2])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", [Block, Forces, Restored, Opposite, Inferred])
@pytest.mark.parametrize("training", [True, False])
def test_a_part_has_gradients_recorded_under_no_grad(kind, training):
    eager = kind().train(training).double()
    ours = ORTModule(copy.deepcopy(eager))
    for around in (torch.no_grad, torch.enable_grad, torch.no_grad):
        x = torch.randn(4, 3, dtype=torch.float64)
        with around():
            expected, actual = _results(eager, x), _results(ours, x)
        assert [result.requires_grad for result in actual] == [result.requires_grad for result in expected]
        torch.testing.assert_close(actual, expected)
        for module, results in ((eager, expected), (ours, actual)):
            module.zero_grad()
            followed = [result.square().sum() for result in results if result.requires_grad]
            if followed:
                sum(followed).backward()
        for parameter, of_eager in zip(ours.module.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(parameter.grad, of_eager.grad)
    torch.testing.assert_close(dict(ours.module.named_buffers()), dict(eager.named_buffers()))


def _results(module, x):
    results = module(x)
    if isinstance(results, dict):
        return list(results.values())
    return list(results) if isinstance(results, tuple) else [results]


def test_no_part_has_gradients_recorded_in_inference_mode():
    module = ORTModule(Block())
    with torch.inference_mode():
        results = module(torch.randn(4, 3))
    assert not any(result.requires_grad for result in results.values())


QUESTIONS = {
    "mode": lambda y: torch.is_inference_mode_enabled(),
    "function": lambda y: y.grad_fn is None,
    "leaf": lambda y: y.is_leaf,
}


class Asking(Plain):
    def __init__(self, question):
        super().__init__()
        self.question = question

    def forward(self, x):
        y = super().forward(x)
        return y * 3 if self.question(y) else y


@pytest.mark.parametrize("question", QUESTIONS)
def test_forward_finds_the_mode_of_its_call(question):
    eager = Asking(QUESTIONS[question]).double()
    ours = ORTModule(copy.deepcopy(eager))
    for around in (torch.enable_grad, torch.inference_mode, torch.no_grad, torch.enable_grad, torch.inference_mode):
        x = torch.randn(4, 3, dtype=torch.float64)
        with around():
            torch.testing.assert_close(ours(x), eager(x))
