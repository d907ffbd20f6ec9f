"""Loss and gradients of a module on the provider, beside eager's in double precision."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from ontrain.training.ortmodule import ORTModule


def gradients(module, batch):
    loss = module(**batch)
    loss = loss if isinstance(loss, torch.Tensor) else loss.loss
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in module.named_parameters()}


def assert_trains_as_in_double(module, batch):
    """Loss and gradients of an ORTModule beside eager's in float64, two steps in a row."""
    exact = copy.deepcopy(module).double()
    doubles = {k: v.double() if v.is_floating_point() else v for k, v in batch.items()}
    wanted_loss, wanted = gradients(exact, doubles)
    wrapped = ORTModule(module)
    for _ in range(2):
        module.zero_grad(set_to_none=True)
        loss, _ = gradients(wrapped, batch)
        assert float(loss) == pytest.approx(float(wanted_loss), rel=1e-5)
        for name, parameter in module.named_parameters():
            scale = float(wanted[name].abs().max())
            assert parameter.grad is not None, name
            torch.testing.assert_close(
                parameter.grad.double(),
                wanted[name],
                rtol=1e-4,
                atol=2e-5 * scale + 1e-9,
                msg=lambda m, n=name: f"{n}: {m}",
            )


class Mixed(nn.Module):
    """Products with turned, cut and gapped factors, with and without a bias, a tied weight, and sums of gradients."""

    def __init__(self, width: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.width = width
        self.wide, self.back = nn.Linear(width, 3 * hidden), nn.Linear(hidden, width, bias=False)
        self.turned = nn.Parameter(torch.randn(width, hidden) / width**0.5)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        a, b, c = self.wide(x).chunk(3, -1)
        y = self.back(torch.tanh(a) * torch.sigmoid(b)) + self.back(c)  # one weight, two products: gradients add up
        y = self.norm(y + (x @ self.turned) @ self.turned.t())
        half = y[: len(y) // 2]  # a block of rows
        narrow = half[:, : self.width // 2] @ self.turned[: self.width // 2]  # of columns, whose rows have gaps
        return nn.functional.cross_entropy(self.head(y), labels) + narrow.square().mean()


def mixed(rows, width, hidden, classes, seed):
    torch.manual_seed(seed)
    batch = {"x": torch.randn(rows, width), "labels": torch.randint(0, classes, (rows,))}
    return Mixed(width, hidden, classes), batch
