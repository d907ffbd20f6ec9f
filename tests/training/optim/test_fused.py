"""FusedAdam and FusedLamb against torch and against the papers' formulas in double precision."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ontrain.errors import OptionError
from ontrain.training.optim import AdamWMode, FusedAdam, FusedLamb

STEPS = 20


def start() -> list[torch.Tensor]:
    torch.manual_seed(3)
    return [torch.randn(7, 5), torch.randn(5), torch.zeros(4)]


def gradients() -> list[list[torch.Tensor]]:
    torch.manual_seed(4)
    return [[torch.randn(7, 5), torch.randn(5) * 1e-3, torch.randn(4)] for _ in range(STEPS)]


def trained(make: Any) -> list[torch.Tensor]:
    params = [nn.Parameter(p) for p in start()]
    optimizer = make(params)
    for grads in gradients():
        optimizer.zero_grad()
        for p, g in zip(params, grads, strict=True):
            p.grad = g.clone()
        optimizer.step()
    return [p.detach() for p in params]


def near(ours: list[torch.Tensor], theirs: Any, tolerance: float = 1e-6) -> None:
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a.double().numpy(), np.asarray(b, np.float64), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize(
    ("mode", "peer"),
    [(AdamWMode.ADAMW_TORCH, torch.optim.AdamW), (AdamWMode.ADAM_L2_REGULARIZATION, torch.optim.Adam)],
)
def test_adam_is_torchs(mode: AdamWMode, peer: Any, decay: float) -> None:
    ours = trained(lambda p: FusedAdam(p, lr=0.01, eps=1e-8, adam_w_mode=mode, weight_decay=decay))
    near(ours, trained(lambda p: peer(p, lr=0.01, eps=1e-8, weight_decay=decay, foreach=False)))


@pytest.mark.parametrize("corrected", [True, False])
@pytest.mark.parametrize("mode", AdamWMode)
def test_adam_is_the_formula(mode: AdamWMode, corrected: bool) -> None:
    """transformers' AdamW as it was published, and the two others without bias correction."""
    lr, b1, b2, eps, decay = 0.01, 0.9, 0.99, 1e-3, 0.1
    params = [p.double().numpy() for p in start()]
    m, v = [p * 0 for p in params], [p * 0 for p in params]
    for t, grads in enumerate(gradients(), 1):
        first, second = (1 - b1**t, math.sqrt(1 - b2**t)) if corrected else (1.0, 1.0)
        for i, g in enumerate(g.double().numpy() for g in grads):
            if mode is AdamWMode.ADAM_L2_REGULARIZATION:
                g = g + decay * params[i]
            if mode is AdamWMode.ADAMW_TORCH:
                params[i] = params[i] * (1 - lr * decay)
            m[i], v[i] = b1 * m[i] + (1 - b1) * g, b2 * v[i] + (1 - b2) * g * g
            if mode is AdamWMode.ADAMW_TRANSFORMERS:
                params[i] = params[i] - lr * second / first * m[i] / (np.sqrt(v[i]) + eps)
                params[i] = params[i] - lr * decay * params[i]
            else:
                params[i] = params[i] - lr / first * m[i] / (np.sqrt(v[i]) / second + eps)
    arguments = {"lr": lr, "betas": (b1, b2), "eps": eps, "weight_decay": decay, "bias_correction": corrected}
    near(trained(lambda p: FusedAdam(p, adam_w_mode=mode, **arguments)), params, 2e-6)


@pytest.mark.parametrize("averaging", [True, False])
@pytest.mark.parametrize("nvlamb", [False, True])
@pytest.mark.parametrize("clip", [0.0, 1.0])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_lamb_is_the_formula(decay: float, clip: float, nvlamb: bool, averaging: bool) -> None:
    lr, b1, b2, eps = 0.01, 0.9, 0.99, 1e-6
    share = 1 - b1 if averaging else 1.0
    params = [p.double().numpy() for p in start()]
    m, v = [p * 0 for p in params], [p * 0 for p in params]
    for t, grads in enumerate(gradients(), 1):
        lists = [g.double().numpy() for g in grads]
        norm = math.sqrt(sum((g * g).sum() for g in lists))
        for i, g in enumerate(lists):
            g = g / max(1.0, norm / clip) if clip else g
            m[i], v[i] = b1 * m[i] + share * g, b2 * v[i] + (1 - b2) * g * g
            update = m[i] / (1 - b1**t) / (np.sqrt(v[i] / (1 - b2**t)) + eps) + decay * params[i]
            w, u = np.linalg.norm(params[i]), np.linalg.norm(update)
            ratio = w / u if w > 0 and u > 0 and (decay or nvlamb) else 1.0
            params[i] = params[i] - lr * ratio * update
    ours = trained(
        lambda p: FusedLamb(
            p,
            lr=lr,
            betas=(b1, b2),
            eps=eps,
            weight_decay=decay,
            max_grad_norm=clip,
            use_nvlamb=nvlamb,
            grad_averaging=averaging,
        )
    )
    near(ours, params, 2e-6)


@pytest.mark.parametrize("kind", [FusedAdam, FusedLamb])
def test_a_saved_state_continues(kind: Any) -> None:
    whole = trained(lambda p: kind(p, lr=0.01, weight_decay=0.1))
    params = [nn.Parameter(p) for p in start()]
    optimizer = kind(params, lr=0.01, weight_decay=0.1)
    for number, grads in enumerate(gradients()):
        if number == STEPS // 2:
            saved = optimizer.state_dict()
            optimizer = kind(params, lr=0.5)
            optimizer.load_state_dict(saved)
        for p, g in zip(params, grads, strict=True):
            p.grad = g.clone()
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(whole, params, strict=True))


def test_groups_dtypes_and_missing_gradients() -> None:
    first, second, idle = (nn.Parameter(p) for p in start())
    half = nn.Parameter(torch.randn(3, dtype=torch.bfloat16))
    optimizer = FusedAdam([{"params": [first, half]}, {"params": [second, idle], "lr": 0.0}], lr=0.1)
    before = [p.detach().clone() for p in (first, half, second, idle)]
    for p in (first, half, second):
        p.grad = torch.ones_like(p)
    optimizer.step()
    moved = [not torch.equal(p, b) for p, b in zip((first, half, second, idle), before, strict=True)]
    assert moved == [True, True, False, False]
    optimizer.zero_grad()
    assert first.grad is None


def test_wrong_values() -> None:
    p = [nn.Parameter(torch.ones(2))]
    for wrong in ({"lr": -1.0}, {"betas": (0.9, 1.0)}, {"eps": float("nan")}, {"weight_decay": -0.1}):
        with pytest.raises(OptionError, match=next(iter(wrong))):
            FusedAdam(p, **wrong)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"ADAMW_TORCH"):
        FusedAdam(p, adam_w_mode=7)
    with pytest.raises(OptionError, match="max_grad_norm"):
        FusedLamb(p, max_grad_norm=-1.0)
    p[0].grad = torch.ones(2).to_sparse()
    with pytest.raises(OptionError, match="sparse"):
        FusedAdam(p).step()
