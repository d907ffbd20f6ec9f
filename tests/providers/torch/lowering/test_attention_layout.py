"""Where results of attention lie: as the reshape behind them wants it, or in the place that a gradient has."""

from __future__ import annotations

import copy

import onnx_ir as ir
import pytest
import torch
from torch import nn

from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering import attention_tiles
from ontrain.providers.torch.lowering.attention_layout import out_by_token
from ontrain.training import ORTTrainer, optim
from ontrain.training.ortmodule import ORTModule

B, H, L, E = 2, 3, 5, 4


class Learned(nn.Module):
    """Query, key and value are parameters; `flat` ones lie as [B · L, H · E]."""

    def __init__(self, flat: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout
        shape = (B * L, H * E) if flat else (B, H, L, E)
        self.q, self.k, self.v = (nn.Parameter(torch.randn(shape)) for _ in range(3))
        self.flat = flat

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = ((t.view(B, L, H, E).transpose(1, 2) if self.flat else t) for t in (self.q, self.k, self.v))
        return (nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout) * x).mean()


@pytest.mark.parametrize("flat", [False, True])
def test_parameters_that_are_query_key_and_value_get_their_gradients(flat):
    plain = Learned(flat)
    ours = ORTModule(copy.deepcopy(plain))
    for _ in range(2):
        x = torch.randn(B, H, L, E)
        plain.zero_grad()
        ours.zero_grad()
        plain(x).backward()
        ours(x).backward()
        for mine, theirs in zip(ours.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("least", [0, 1 << 30], ids=["not whole", "whole"])
@pytest.mark.parametrize("flat", [False, True])
def test_parameters_get_their_gradients_however_attention_is_computed(flat, least, monkeypatch):
    """With a dropout that drops next to nothing, and without."""
    for name in ("WHOLE", "TILED"):
        monkeypatch.setattr(attention_tiles, name, least)
    for dropout in (0.0, 1e-9):
        plain, x = Learned(flat), torch.randn(B, H, L, E)
        ours = ORTModule(Learned(flat, dropout))
        ours.load_state_dict(plain.state_dict())
        plain(x).backward()
        ours(x).backward()
        for mine, theirs in zip(ours.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("flat", [False, True])
def test_parameters_that_are_query_key_and_value_are_trained(flat):
    plain, x = Learned(flat), torch.randn(B, H, L, E)
    description = {"inputs": [("x", [B, H, L, E])], "outputs": [("loss", [], True)]}
    trainer = ORTTrainer(copy.deepcopy(plain), description, optim.SGDConfig(lr=1.0))
    optimizer = torch.optim.SGD(plain.parameters(), lr=1.0)
    for _ in range(4):
        optimizer.zero_grad()
        loss = plain(x)
        loss.backward()
        optimizer.step()
        torch.testing.assert_close(trainer.train_step(x), loss.detach(), rtol=1e-5, atol=1e-7)


def test_without_a_place_the_heads_of_a_token_lie_together():
    e = Emitter(torch.device("cpu"))
    value = ir.Value(name="y", shape=ir.Shape((B, H, L, E)), type=ir.TensorType(ir.DataType.FLOAT))
    buf = out_by_token(e, value)
    assert buf.shape == (B, H, L, E) and e.value(value) is buf
    e.reshape(e.permute(buf, (0, 2, 1, 3)), (B, L, H * E))
    assert not e.program  # that was a view
