"""A pool behind a convolution or a normalisation, beside eager's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from tests.training.ortmodule.networks import assert_same_gradients, pair

__all__ = ["Pooled", "check"]

Pool = Callable[[torch.Tensor], torch.Tensor]


class Pooled(nn.Module):
    """A pool of images with their channels last, as a convolution leaves them, or of rows."""

    def __init__(self, pool: Pool, last: bool) -> None:
        super().__init__()
        self.before, self.pool = nn.Conv2d(3, 4, 1) if last else nn.BatchNorm2d(3), pool

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pool(self.before(x)).square()


def check(pool: Pool, size: Sequence[int]) -> None:
    """Compare results and gradients of a pool of images of some size, of both layouts."""
    for last in (False, True):
        ours, eager = pair(Pooled(pool, last))
        x = torch.randn(2, 3, *size)
        for module in (ours, eager):
            module(x).mean().backward()
        torch.testing.assert_close(ours(x), eager(x), rtol=1e-5, atol=1e-6)
        assert_same_gradients(ours, eager, rtol=1e-5, atol=1e-6)
