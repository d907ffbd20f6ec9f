"""Losses of pairs: kernels give what the bodies give, gradients included, and each is eager's to the bit."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from ontrain.errors import ProviderError
from tests.providers.bodies import compare, lowered_in
from tests.training.ortmodule.networks import pair


@lowered_in("pair_loss")
def test_kernels_equal_the_bodies(sample, rng):
    compare(sample, rng, "TorchExecutionProvider")


class Loss(nn.Module):
    """A loss of the batch times a number."""

    def __init__(self, loss, **named) -> None:
        super().__init__()
        self.gain, self.loss, self.named = nn.Parameter(torch.tensor(1.5)), loss, named

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return self.loss(x * self.gain, target, **self.named)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(
    "loss, named",
    [(functional.mse_loss, {}), (functional.smooth_l1_loss, {"beta": 0.3}), (functional.huber_loss, {"delta": 0.3}),
     (functional.binary_cross_entropy_with_logits, {})],
)  # fmt: skip
def test_losses_and_gradients_are_eagers(loss, named, reduction):
    ours, eager = pair(Loss(loss, reduction=reduction, **named))
    x, target = torch.randn(3, 5, 4, 4), torch.rand(3, 5, 4, 4)
    adjoints = []
    for module in (ours, eager):
        batch = x.clone().requires_grad_()
        y = module(batch, target)
        (y * 0.7).sum().backward()
        adjoints.append((y.detach(), batch.grad))
    for mine, theirs in zip(*adjoints, strict=True):
        if reduction == "mean":  # eager divides the factor of each difference, ours the adjoint
            torch.testing.assert_close(mine, theirs, rtol=3e-7, atol=0)
        else:
            assert torch.equal(mine, theirs)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_losses_of_probabilities_and_their_gradients_are_eagers(reduction):
    ours, eager = pair(Loss(functional.binary_cross_entropy, reduction=reduction))
    x, target, gradients = torch.rand(3, 5, 4, 4) / 1.5, torch.rand(3, 5, 4, 4), []
    x.view(-1)[:8], target.view(-1)[:8] = 0.0, torch.tensor([0.0, 1.0, 0.5, 0.0]).repeat(2)
    for module in (ours, eager):
        batch = x.clone().requires_grad_()
        y = module(batch, target)
        (y * 0.7).sum().backward()
        gradients.append((y.detach(), batch.grad))
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=3e-7 if reduction == "mean" else 0, atol=0)


def test_what_is_no_probability_is_refused_as_eager_refuses_it():
    ours, eager = pair(Loss(functional.binary_cross_entropy))
    for module, kind in ((ours, ProviderError), (eager, RuntimeError)):
        with pytest.raises(kind, match="between 0 and 1"):
            module(torch.tensor([0.5, 2.0]), torch.tensor([0.0, 1.0]))


def test_targets_of_another_shape_take_what_flows_back_to_each_place():
    ours, eager = pair(Loss(functional.mse_loss))
    x, targets = torch.randn(3, 4), []
    for module in (ours, eager):
        target = torch.linspace(-1, 1, 4).requires_grad_()
        module(x, target).backward()
        targets.append(target.grad)
    torch.testing.assert_close(*targets)
