"""Products in bfloat16 in programs that are in float32 otherwise."""

from __future__ import annotations

import copy
import warnings

import onnx_ir as ir
import pytest
import torch
from torch import nn

from ontrain.passes import BFloat16Products, register_pass, unregister_pass
from ontrain.providers.torch import provider
from ontrain.training import ORTTrainer, optim
from ontrain.training.ortmodule import ORTModule


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(50, 32), nn.LayerNorm(32)
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.head = nn.Linear(32, 50)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        q, k, v = self.qkv(self.norm(x)).view(*ids.shape, 3, 4, 8).permute(2, 0, 3, 1, 4)
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return nn.functional.cross_entropy(self.head(nn.functional.gelu(x)).flatten(0, 1), labels.flatten())


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setattr(provider, "multiplies_bfloat16", lambda: True)
    register_pass(BFloat16Products(), stage="forward", after="FuseHead")
    yield
    unregister_pass("BFloat16Products", stage="forward")


@pytest.fixture
def batch():
    return torch.randint(50, (4, 16)), torch.randint(50, (4, 16))


def _gradients(module: nn.Module, *batch: torch.Tensor) -> list[torch.Tensor]:
    module.zero_grad()
    module(*batch).backward()
    return [p.grad.clone() for p in module.parameters()]


@pytest.mark.usefixtures("registered")
def test_gradients_of_a_float32_module_are_no_worse_than_autocasts(batch):
    block = _Block()
    exact = _gradients(copy.deepcopy(block).double(), *batch)
    with torch.autocast("cpu", torch.bfloat16):
        half = _gradients(copy.deepcopy(block), *batch)
    module = ORTModule(block)
    gradients = _gradients(module, *batch)
    for own, other, truth in zip(gradients, half, exact, strict=True):
        assert own.dtype == torch.float32
        assert torch.dist(own.double(), truth) <= 1.4 * torch.dist(other.double(), truth) + 1e-6 * truth.norm()
    assert any(not torch.allclose(own.double(), truth, rtol=1e-5) for own, truth in zip(gradients, exact, strict=True))


@pytest.mark.usefixtures("registered")
def test_products_alone_are_in_bfloat16(batch):
    module = ORTModule(_Block())
    module(*batch).backward()
    (plan,) = (plan for entry in module._engine.entries for plan in entry.session.plans.values())
    halves = {
        node.op_type for node in plan.model.graph
        if any(v.dtype == ir.DataType.BFLOAT16 for v in node.outputs) and node.op_type not in ("Cast", "Reshape")
    }  # fmt: skip
    assert {"Gemm", "Attention"} <= halves
    assert not halves & {"LayerNormalization", "Gelu", "GeluGrad", "Add", "Softmax"}


@pytest.mark.usefixtures("registered")
def test_a_trainer_keeps_its_weights_and_moments_in_float32(batch):
    trainer = ORTTrainer(
        _Block(), {"inputs": [("ids", [4, 16]), ("labels", [4, 16])], "outputs": [("loss", [], True)]},
        optim.AdamConfig(lr=1e-2),
    )  # fmt: skip
    first, *_, last = (float(trainer.train_step(*batch)) for _ in range(20))
    assert last < first
    assert {t.dtype for t in trainer.state_dict(pytorch_format=True).values()} == {torch.float32}


def test_without_units_products_stay_in_float32_and_a_warning_says_so(registered, batch, monkeypatch):
    monkeypatch.setattr(provider, "multiplies_bfloat16", lambda: False)
    module = ORTModule(_Block())
    with pytest.warns(UserWarning, match="no units for bfloat16 on this processor: products stay in float32"):
        module(*batch).backward()
    (plan,) = (plan for entry in module._engine.entries for plan in entry.session.plans.values())
    assert all(v.dtype != ir.DataType.BFLOAT16 for node in plan.model.graph for v in node.outputs)


def test_without_the_pass_nothing_is_rounded(batch):
    block = _Block()
    exact = _gradients(copy.deepcopy(block).double(), *batch)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        own = _gradients(ORTModule(block), *batch)
    for ours, truth in zip(own, exact, strict=True):
        torch.testing.assert_close(ours.double(), truth, rtol=1e-4, atol=1e-6)
