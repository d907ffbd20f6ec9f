"""One `torch.autocast` around several steps: eager PyTorch goes on with the weights that it cast first."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import nn

from ontrain.training.ortmodule import ORTModule

STEPS = 5


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 1))


def losses(model: nn.Module, *, whole: bool, cache: bool = True) -> list[float]:
    """Of some steps, within one block of autocast or with one for each step."""
    optimizer = torch.optim.SGD(model.parameters(), 0.3)
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(16, 4, generator=generator), torch.randn(16, 1, generator=generator)
    history = []
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=cache) if whole else nullcontext():
        for _ in range(STEPS):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, cache_enabled=cache):
                loss = (model(x).float() - y).square().mean()
            loss.backward()
            optimizer.step()
            history.append(loss.item())
    return history


def test_eager_goes_on_with_the_weights_that_it_cast_first() -> None:
    assert len(set(losses(network(), whole=True))) == 1


@pytest.mark.parametrize("whole", [True, False], ids=["one block", "a block for each step"])
def test_each_step_casts_the_weights_as_they_are(whole: bool) -> None:
    history = losses(ORTModule(network()), whole=whole)
    assert history[-1] < history[0]
    assert history == pytest.approx(losses(network(), whole=False), rel=1e-2)
    assert history == pytest.approx(losses(network(), whole=True, cache=False), rel=1e-2)
