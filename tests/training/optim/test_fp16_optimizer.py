"""FP16_Optimizer: float32 master weights under half-precision parameters."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ontrain.errors import OptionError
from ontrain.training.optim import FP16_Optimizer
from ontrain.training.ortmodule import ORTModule


def regression(dtype: torch.dtype) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)).to(dtype)
    x = torch.randn(64, 8)
    return model, x.to(dtype), x.sum(1, keepdim=True).to(dtype)


@pytest.mark.parametrize("wrap", [False, True])
def test_small_updates_are_not_lost(wrap: bool) -> None:
    """Updates below half a unit in the last place of bfloat16 add up in the master weights."""
    model, x, y = regression(torch.bfloat16)
    net = ORTModule(model) if wrap else model
    optimizer = FP16_Optimizer(torch.optim.SGD(model.parameters(), lr=1e-4), static_loss_scale=128.0)
    reference, fx, fy = regression(torch.bfloat16)
    reference, fx, fy = reference.float(), fx.float(), fy.float()
    plain = torch.optim.SGD(reference.parameters(), lr=1e-4)
    for _ in range(100):
        optimizer.zero_grad()
        optimizer.backward(nn.functional.mse_loss(net(x), y))
        optimizer.step()
        plain.zero_grad()
        nn.functional.mse_loss(reference(fx), fy).backward()
        plain.step()
    masters = [p for group in optimizer.param_groups for p in group["params"]]
    start = list(regression(torch.bfloat16)[0].parameters())
    for master, p, exact, before in zip(masters, model.parameters(), reference.parameters(), start, strict=True):
        assert torch.equal(p, master.to(torch.bfloat16))
        moved = (exact - before.float()).norm()
        assert (master - exact).norm() < 0.03 * moved  # bfloat16 has 8 bits


def test_an_overflow_is_left_out_and_the_scale_follows() -> None:
    model, x, y = regression(torch.float16)
    optimizer = FP16_Optimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), dynamic_loss_scale=True,
        dynamic_loss_args={"init_scale": 2.0**24, "scale_window": 2},
    )  # fmt: skip
    before = [p.detach().clone() for p in model.parameters()]
    scales = []
    for _ in range(30):
        optimizer.zero_grad()
        optimizer.backward(nn.functional.mse_loss(model(x).float(), y.float()))
        optimizer.step()
        scales.append(optimizer.loss_scale)
        if optimizer.overflow and len(scales) == 1:
            assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    assert scales[0] == 2.0**23
    assert any(later > earlier for earlier, later in zip(scales, scales[1:], strict=False))
    assert all(torch.isfinite(p).all() for p in model.parameters())


def test_the_scale_doubles_after_each_window_of_good_steps() -> None:
    model, x, y = regression(torch.float16)
    optimizer = FP16_Optimizer(
        torch.optim.SGD(model.parameters(), lr=0.01), dynamic_loss_scale=True,
        dynamic_loss_args={"init_scale": 8.0, "scale_window": 3},
    )  # fmt: skip
    scales = []
    for _ in range(7):
        optimizer.zero_grad()
        optimizer.backward(nn.functional.mse_loss(model(x).float(), y.float()))
        optimizer.step()
        assert not optimizer.overflow
        scales.append(optimizer.loss_scale)
    assert scales == [8, 8, 16, 16, 16, 32, 32]


def test_state_continues_and_clipping_is_of_unscaled_gradients() -> None:
    def run(steps: int, saved: dict[str, object] | None = None) -> tuple[list[torch.Tensor], dict[str, object], float]:
        model, x, y = regression(torch.bfloat16)
        optimizer = FP16_Optimizer(torch.optim.Adam(model.parameters(), lr=0.01), static_loss_scale=64.0)
        if saved is not None:
            optimizer.load_state_dict(saved)
        norm = 0.0
        for _ in range(steps):
            optimizer.zero_grad()
            optimizer.backward(nn.functional.mse_loss(model(x), y))
            norm = optimizer.clip_master_grads(0.5)
            optimizer.step()
        return [p.detach().clone() for p in model.parameters()], optimizer.state_dict(), norm

    whole, _, norm = run(8)
    half = run(4)[1]
    assert all(torch.equal(a, b) for a, b in zip(whole, run(4, half)[0], strict=True))
    assert 0 < norm < 64


def test_a_step_takes_clipped_gradients_as_they_are() -> None:
    model, x, y = regression(torch.bfloat16)
    optimizer = FP16_Optimizer(torch.optim.SGD(model.parameters(), lr=1.0), static_loss_scale=64.0)
    masters = [p for group in optimizer.param_groups for p in group["params"]]
    before = [p.detach().clone() for p in masters]
    optimizer.backward(nn.functional.mse_loss(model(x), y))
    assert optimizer.clip_master_grads(0.01) > 0.1
    optimizer.step()
    moved = torch.cat([(p.detach() - b).flatten() for p, b in zip(masters, before, strict=True)]).norm()
    assert moved == pytest.approx(0.01, rel=1e-3)


def test_refusals() -> None:
    model, _, _ = regression(torch.float16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(OptionError, match="no optimizer"):
        FP16_Optimizer(model)
    with pytest.raises(OptionError, match="loss_scale"):
        FP16_Optimizer(optimizer, scale=1.0)
    with pytest.raises(OptionError, match="known: init_scale"):
        FP16_Optimizer(optimizer, dynamic_loss_scale=True, dynamic_loss_args={"window": 1})
    with pytest.raises(OptionError, match="positive"):
        FP16_Optimizer(optimizer, static_loss_scale=0.0)
