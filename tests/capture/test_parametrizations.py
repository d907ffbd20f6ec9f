"""Layers whose weight is computed: results and gradients as in eager PyTorch."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, spectral_norm, weight_norm as old_weight_norm

from ontrain.training.ortmodule import ORTModule

pytestmark = pytest.mark.sampled(4)

LAYERS = {
    "spectral_norm": lambda: spectral_norm(nn.Linear(4, 3)),
    "spectral_norm of a convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (2, 2)), spectral_norm(nn.Conv1d(2, 3, 2), n_power_iterations=2)
    ),
    "parametrizations.spectral_norm": lambda: parametrizations.spectral_norm(nn.Linear(4, 3)),
    "weight_norm": lambda: old_weight_norm(nn.Linear(4, 3)),
    "parametrizations.weight_norm": lambda: parametrizations.weight_norm(nn.Linear(4, 3)),
    "weight_norm of columns": lambda: parametrizations.weight_norm(nn.Linear(4, 3), dim=1),
    "weight_norm of the whole": lambda: parametrizations.weight_norm(nn.Linear(4, 3), dim=None),
    "weight_norm of a convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (2, 2)), parametrizations.weight_norm(nn.Conv1d(2, 3, 2), dim=2)
    ),
}


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
@pytest.mark.parametrize("name", LAYERS)
def test_a_computed_weight_trains_as_in_eager(name):
    models = []
    for _ in range(2):
        torch.manual_seed(4)
        models.append(LAYERS[name]())
    plain, wrapped = models
    model = ORTModule(wrapped)
    x = torch.randn(5, 4)
    expected, y = plain(x), model(x)
    torch.testing.assert_close(y, expected)
    expected.square().sum().backward()
    y.square().sum().backward()
    for ours, theirs in zip(wrapped.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dim", [0, 1, None])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_weight_norm_is_no_reason_to_write_the_program_anew(dim, dtype, monkeypatch):
    monkeypatch.setattr("ontrain.capture.program.decomposed", lambda program: pytest.fail("written anew"))
    layer = parametrizations.weight_norm(nn.Linear(4, 3), dim=dim).to(dtype)
    x = torch.randn(5, 4, dtype=dtype)
    torch.testing.assert_close(ORTModule(layer)(x), layer(x))


def test_statistics_in_halves_stay_so_beside_a_spectral_norm():
    layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), parametrizations.spectral_norm(nn.Conv2d(4, 2, 3))
    eager = nn.Sequential(*layers).bfloat16()
    ours = ORTModule(copy.deepcopy(eager))
    for _ in range(2):
        x = torch.randn(2, 3, 8, 8).bfloat16()
        torch.testing.assert_close(ours(x), eager(x), rtol=0.05, atol=0.05)
        for buffer, expected in zip(ours.buffers(), eager.buffers(), strict=True):
            torch.testing.assert_close(buffer, expected, rtol=0.02, atol=0.02)
