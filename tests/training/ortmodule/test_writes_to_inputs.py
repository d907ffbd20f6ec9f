"""Arguments that forward writes to in place: the caller's tensors hold what eager PyTorch leaves there."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from ontrain.training.ortmodule import ORTModule


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)


class Labels(Base):
    def forward(self, x, labels):
        labels[labels == -1] = 0
        x[:, 0] = 2.0
        return functional.cross_entropy(self.layer(x), labels), self.layer(x).argmax(1)


class InPlaceFirst(Base):
    def forward(self, x, labels):
        return self.layer(functional.relu_(x)), x


class ThroughView(Base):
    def forward(self, x, labels):
        x.view(-1).mul_(2)
        labels.add_(x.shape[0])
        return {"loss": self.layer(x).square().mean(), "x": x}


class ReadBefore(Base):
    """The gradient of the weight is of what the input was before."""

    def forward(self, x, labels):
        y = self.layer(x.clone())
        x.zero_()
        return y * labels[:, None], y


class OnePart(Base):
    def forward(self, x, labels):
        x[0].copy_(x[1] * 3)
        return self.layer(x), labels


def tensors(result):
    return list(result.values()) if isinstance(result, dict) else list(result)


@pytest.mark.parametrize("kind", [Labels, InPlaceFirst, ThroughView, ReadBefore, OnePart])
def test_results_gradients_and_arguments_are_eagers(kind):
    torch.manual_seed(0)
    eager = kind().double()
    model = copy.deepcopy(eager)
    wrapped = ORTModule(model)
    for step in range(5):
        for module in (wrapped, eager):
            module.train(step != 3)
        x, labels = torch.randn(2 + step % 2, 4, dtype=torch.float64), torch.randint(-1, 3, (2 + step % 2,))
        ours, eagers = (x.clone(), labels.clone()), (x.clone(), labels.clone())
        with torch.set_grad_enabled(step != 4):
            results, expected = tensors(wrapped(*ours)), tensors(eager(*eagers))
        torch.testing.assert_close(results, expected)
        torch.testing.assert_close(ours, eagers)
        if step != 4:
            for module, result in ((model, results), (eager, expected)):
                module.zero_grad()
                result[0].sum().backward()
            torch.testing.assert_close(model.layer.weight.grad, eager.layer.weight.grad)


def test_an_argument_that_somebody_goes_on_with_is_left_as_it_was_with_a_warning():
    wrapped, x = ORTModule(InPlaceFirst()), torch.randn(2, 4)
    wrapped(x, torch.zeros(2))
    before = -torch.ones(2, 4)
    followed = before.clone().requires_grad_() * 1.0
    with pytest.warns(UserWarning, match="writes in place to an argument that requires gradients"):
        wrapped(followed, torch.zeros(2))
    torch.testing.assert_close(followed.detach(), before)
