"""Normalisations: kernels give what the operators' bodies give; the statistics of a batch are computed once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

import ontrain
from tests.autodiff.samples.sample import sample
from tests.providers.bodies import compare, lowered_in
from tests.training.ortmodule.networks import assert_same_gradients, pair


@pytest.fixture
def network():
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def test_the_gradient_takes_the_forwards_statistics(network, monkeypatch):
    def measured_again(*_, **__):
        raise AssertionError("the statistics are computed a second time")

    ours, eager = pair(network)
    x = 3 + torch.randn(16, 6)
    for module in (ours, eager):
        module(x).square().mean().backward()
        module.zero_grad()
    monkeypatch.setattr(torch, "var_mean", measured_again)
    for module in (ours, eager):
        module(x).square().mean().backward()
    assert_same_gradients(ours, eager, rtol=1e-5, atol=1e-6)


def test_two_normalisations_of_one_batch_have_their_own(network):
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.near, self.far = nn.BatchNorm1d(6, eps=1e-5), nn.BatchNorm1d(6, eps=0.5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.near(x) * self.far(x).relu()

    ours, eager = pair(Twice())
    x = 0.3 * torch.randn(16, 6)
    for module in (ours, eager):
        module(x).square().mean().backward()
    assert_same_gradients(ours, eager, rtol=1e-5, atol=1e-6)


@lowered_in("normalization")
def test_kernels_equal_the_bodies(sample, rng):
    compare(sample, rng, "TorchExecutionProvider")


def test_the_epsilon_of_a_mean_variance_normalization_is_added_to_the_deviation(rng):
    """Values of the size of 1e-5: their variance is below that epsilon, their deviation far above it."""
    small = sample("MeanVarianceNormalization", lambda rng: 1e-5 * rng.standard_normal((2, 3, 4, 2)), twin=torch.clone)
    compare(small, rng, "TorchExecutionProvider")


@pytest.mark.parametrize("axis", [-1, 1])
def test_squares_of_half_precision_do_not_overflow(axis):
    """The square of 300 is beyond half precision, and the operator computes in single precision by default."""
    x = (300 * np.random.default_rng(0).standard_normal((3, 4, 8))).astype(np.float16)
    scale = np.linspace(0.5, 2, 8, dtype=np.float16)
    node = helper.make_node("RMSNormalization", ["x", "scale"], ["y"], axis=axis)
    types = [helper.make_tensor_value_info(n, TensorProto.FLOAT16, v.shape) for n, v in (("x", x), ("scale", scale))]
    graph = helper.make_graph([node], "norm", types, [helper.make_tensor_value_info("y", TensorProto.FLOAT16, x.shape)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    session = ontrain.InferenceSession(model.SerializeToString(), providers=["TorchExecutionProvider"])
    (y,) = session.run(None, {"x": x, "scale": scale})
    wide = x.astype(np.float64)
    root = np.sqrt(np.mean(wide * wide, tuple(range(axis % 3, 3)), keepdims=True) + 1e-5)
    np.testing.assert_allclose(y, wide / root * scale, rtol=2e-3)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("statistics", [{}, {"momentum": None}, {"track_running_stats": False}], ids=str)
@pytest.mark.parametrize("images", [False, True])
def test_a_batch_without_rows_leaves_statistics_as_they_are(images, statistics):
    norm = nn.BatchNorm2d(4, **statistics) if images else nn.BatchNorm1d(4, **statistics)
    ours, eager = pair(nn.Sequential(nn.Conv2d(3, 4, 1) if images else nn.Linear(3, 4), norm).double())
    for rows in (3, 0, 4):
        x = torch.randn(rows, 3, *(2, 2)[: 2 * images], dtype=torch.float64)
        for module in (ours, eager):
            module(x).square().sum().backward()
        assert_same_gradients(ours, eager, rtol=1e-9, atol=1e-11)
        for mine, theirs in zip(ours.buffers(), eager.buffers(), strict=True):
            torch.testing.assert_close(mine, theirs)
