"""A batch normalisation of one value per channel is refused as by eager PyTorch: its variance would not be finite."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from ontrain.errors import InputError
from ontrain.training import ORTTrainer, optim

DESCRIPTION = {
    "inputs": [("x", ["batch", 3, "width"]), ("label", ["batch"])],
    "outputs": [("loss", [], True), ("logits", ["batch", 4])],
}


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.rows = nn.BatchNorm1d(3), nn.BatchNorm1d(4)
        self.layer = nn.Linear(3, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.layer(self.first(x).flatten(0, 0).mean(2))
        return self.rows(h) if self.rows.training else h * 2


def trainer_of(network: nn.Module) -> ORTTrainer:
    options = {"device": {"id": "cpu"}, "utils": {"grad_norm_clip": False}}
    return ORTTrainer(network, DESCRIPTION, optim.SGDConfig(lr=0.1), nn.functional.cross_entropy, options)


def batch(size: int, width: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(size)
    return torch.randn(size, 3, width, generator=generator), torch.randint(4, (size,), generator=generator)


@pytest.mark.parametrize("before", [[], [4], list(range(2, 14))], ids=["at first", "later", "behind many sizes"])
def test_one_row_is_refused_and_leaves_the_statistics(before: list[int]) -> None:
    trainer = trainer_of(network := Network())
    for size in before:
        trainer.train_step(*batch(size))
    state = copy.deepcopy(network.state_dict())
    with pytest.raises(
        InputError, match=r"Expected more than 1 value per channel when training, got input size \[1, 4\]"
    ):
        trainer.train_step(*batch(1))
    torch.testing.assert_close(network.state_dict(), state, rtol=0, atol=0)
    trainer.train_step(*batch(3))
    assert all(torch.isfinite(value).all() for value in network.state_dict().values())
    assert torch.isfinite(trainer.eval_step(batch(1)[0])).all()


def test_one_row_of_several_values_trains_as_in_eager() -> None:
    network = Network()
    network.rows.eval()
    eager = copy.deepcopy(network)
    trainer = trainer_of(network)
    trainer.train_step(*batch(4))
    x, label = batch(4)
    nn.functional.cross_entropy(eager(x), label).backward()
    with torch.no_grad():
        for parameter in eager.parameters():
            parameter -= 0.1 * parameter.grad if parameter.grad is not None else 0.0
    x, label = batch(1)
    loss, _ = trainer.train_step(x, label)
    torch.testing.assert_close(loss, nn.functional.cross_entropy(eager(x), label).detach())
    torch.testing.assert_close(network.first.running_var, eager.first.running_var)
    with pytest.raises(InputError, match=r"got input size \[1, 3, 1\]"):
        trainer.train_step(*batch(1, width=1))
