"""Norms of millions of elements, which ATen's own sum of squares has wrong from the fifth digit on."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ontrain.graph import Builder, new_model
from ontrain.providers.torch.norms import norm, norms
from ontrain.training import ORTTrainer, optim
from ontrain.training.optim import FusedLamb
from tests.providers.graphs import float_input, run

_ELEMENTS = 8 << 20


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(_ELEMENTS + 7,), (2, 1 << 20), (3000, 2816), (0, 5), (65535,), (66559,)], ids=str)
@pytest.mark.parametrize("make", [torch.randn, torch.ones])
def test_a_norm_is_that_of_all_elements(make, shape, dtype):
    torch.manual_seed(0)
    large = make(shape, dtype=dtype)
    assert norm(large).dtype == dtype and norm(large).shape == ()
    exact = float(large.double().square().sum().sqrt())
    for total in (norm(large), *norms([large, large])):
        assert float(total) == pytest.approx(exact, rel=5e-7)


@pytest.mark.parametrize("shape", [(_ELEMENTS >> 10, 1024), (128, _ELEMENTS >> 12, 4, 8), (_ELEMENTS + 7,)], ids=str)
def test_the_norm_of_gradients_is_exact_to_single_precision(shape):
    torch.manual_seed(0)
    large, small = torch.randn(shape), torch.randn(7)
    exact = torch.cat([large.flatten(), small]).double().norm()
    x, y = float_input("x", shape), float_input("y", (7,))
    model = new_model([x, y], "norm")
    model.graph.outputs.append(Builder(model.graph).composite("GlobalNorm", x, y))
    (norm,) = run(model, {"x": large, "y": small})
    assert float(norm) == pytest.approx(float(exact), rel=5e-7)
    assert float(torch.linalg.vector_norm(large)) != pytest.approx(float(exact), rel=1e-5), "there is nothing to mend"


def test_lamb_steps_by_the_norm_of_the_weight():
    torch.manual_seed(0)
    model = nn.Linear(1024, _ELEMENTS >> 10, bias=False)
    before = model.weight.detach().double()
    desc = {"inputs": [("x", [4, 1024]), ("y", [4, 8192])], "outputs": [("loss", [], True)]}
    trainer = ORTTrainer(model, desc, optim.LambConfig(lr=0.125, lambda_coef=0.0), nn.functional.mse_loss)
    trainer.train_step(torch.randn(4, 1024), torch.randn(4, 8192))
    step = (model.weight.detach().double() - before).norm()
    assert float(step) == pytest.approx(0.125 * float(before.norm()), rel=2e-6)


def test_fused_lamb_steps_by_the_norm_of_the_weight():
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(_ELEMENTS >> 10, 1024))
    weight.grad, before = torch.randn(weight.shape), weight.detach().double()
    FusedLamb([weight], lr=0.125, weight_decay=0.0, use_nvlamb=True, max_grad_norm=0.0).step()
    step = (weight.detach().double() - before).norm()
    assert float(step) == pytest.approx(0.125 * float(before.norm()), rel=2e-6)
