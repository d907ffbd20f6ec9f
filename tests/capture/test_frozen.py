"""Parameters whose gradient forward turns off and on: gradients are eager's, or the module is refused."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from ontrain.errors import CaptureError
from ontrain.training.ortmodule import ORTModule


class Critic(nn.Module):
    """Judges what it is given twice, the first time by a critic that is not trained."""

    def __init__(self, off, on):
        super().__init__()
        self.made, self.critic, self.off, self.on = nn.Linear(4, 4), nn.Linear(4, 3), off, on

    def forward(self, x):
        self.off(self.critic)
        judged = self.critic(self.made(x)) + (x @ self.critic.weight.T).tanh()
        judged = judged + torch.cat([self.critic.weight, self.critic.weight.mT[:3, :1]], 1).sum()
        self.on(self.critic)
        return judged + 2 * self.critic(x)


def by_method(flag):
    return lambda module: module.requires_grad_(flag)


def by_attribute(flag):
    def switch(module):
        module.weight.requires_grad = flag

    return switch


@pytest.mark.parametrize("way", [by_method, by_attribute])
def test_a_use_while_the_gradient_is_off_gives_none(way):
    torch.manual_seed(0)
    eager = Critic(way(False), way(True)).double()
    ours = ORTModule(copy.deepcopy(eager))
    for rows in (5, 3):
        x = torch.randn(rows, 4, dtype=torch.float64)
        for module in (eager, ours):
            module.zero_grad()
            module(x).tanh().sum().backward()
        for p, q in zip(ours.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-10, atol=1e-12)
            assert p.requires_grad


LEFT = {
    "method": by_method(False), "attribute": by_attribute(False), "detach_": lambda module: module.weight.detach_()
}  # fmt: skip


@pytest.mark.parametrize("way", LEFT)
def test_a_gradient_that_stays_off_is_refused_by_name(way):
    module = ORTModule(Critic(LEFT[way], lambda _: None))
    with pytest.raises(CaptureError, match=r"(?s)critic\.weight' off.*test_frozen.*before the module is called"):
        module(torch.randn(5, 4))


def test_a_gradient_that_stays_on_is_refused_by_name():
    critic = Critic(lambda _: None, by_method(True))
    critic.critic.requires_grad_(False)
    with pytest.raises(CaptureError, match=r"critic\.weight' on"):
        ORTModule(critic)(torch.randn(5, 4))
