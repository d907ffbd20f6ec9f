"""Masks of attention that are known when a module is captured."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from ontrain.capture import capture
from ontrain.training.ortmodule import ORTModule
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


class InBlocks(nn.Module):
    """Attention within blocks of an image, [batch, heads, blocks, length, size], as NesT computes it."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.project = kind, nn.Linear(8, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[2]
        q, k, v = self.project(x).view(*x.shape[:3], 3, 2, 4).permute(3, 0, 4, 1, 2, 5)
        mask = None
        if self.kind == "of two axes":
            mask = torch.ones(length, length, dtype=torch.bool).tril()
        elif self.kind == "of three axes":
            mask = x[0, :, :, :1].expand(-1, -1, length)
        elif self.kind == "of five axes":
            mask = x.mean(-1)[:, None, :, None, :].expand(-1, 2, -1, length, -1)
        return nn.functional.scaled_dot_product_attention(q, k, v, mask, is_causal=self.kind == "causal")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["none", "causal", "of two axes", "of three axes", "of five axes"])
def test_attention_in_blocks_is_eagers(kind):
    eager = InBlocks(kind).double()
    ours = ORTModule(copy.deepcopy(eager))
    for batch, blocks, length in ((2, 3, 5), (3, 2, 6)):
        x, results = torch.randn(batch, blocks, length, 8, dtype=torch.float64), []
        for module in (eager, ours):
            leaf = x.clone().requires_grad_()
            y = module(leaf)
            y.square().sum().backward()
            results.append((y, leaf.grad))
        torch.testing.assert_close(results[1], results[0])
