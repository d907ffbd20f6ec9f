"""Masks of attention that are known when a module is captured."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ontrain.capture import capture
from tests.capture.harness import nodes, run_captured


class Masked(nn.Module):
    """Attention under a mask that forward makes itself."""

    def __init__(self, hidden: int, expands: bool) -> None:
        super().__init__()
        self.hidden, self.expands = hidden, expands

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(1, 1, 5, 5, dtype=torch.bool)
        mask[..., : self.hidden] = False
        mask = mask.expand(x.shape[0], -1, -1, -1) if self.expands else mask
        return nn.functional.scaled_dot_product_attention(x, x, x, mask)


@pytest.mark.parametrize("expands", [True, False])
@pytest.mark.parametrize("hidden", [0, 2, 5])
def test_a_mask_that_hides_nothing_is_none(hidden, expands):
    module = Masked(hidden, expands)
    captured = capture(module, (torch.randn(2, 3, 5, 4),), {}, dynamic=[{0: "n"}])
    (attention,) = nodes(captured, "Attention")
    biases = [value for value in attention.inputs[3:4] if value is not None]
    assert len(biases) == (hidden > 0)
    for size in (2, 3):
        x = torch.randn(size, 3, 5, 4)
        result, _ = run_captured(captured, (x,))
        torch.testing.assert_close(result, module(x), rtol=1e-5, atol=1e-6)
