"""A forward that asks whether a size is one: a trace takes sizes that vary to be two at least, and asks nobody."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from ontrain.errors import InputError
from ontrain.training import ORTTrainer, optim
from ontrain.training.ortmodule import ORTModule


class Asking(nn.Module):
    def __init__(self, asks: str) -> None:
        super().__init__()
        self.asks, self.layer = asks, nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, size = self.layer(x), x.shape[0]
        if self.asks == "nothing":
            return h
        if self.asks == "equals":
            return h * 2 if size == 1 else h
        if self.asks == "exceeds":
            return h - h.mean(0) if len(x) > 1 else h
        if self.asks == "product":
            return h * 2 if 3 * size < 6 else h
        assert size >= 1
        return h


def trainer_of(model: nn.Module, size: int | str = "batch") -> ORTTrainer:
    description = {"inputs": [("x", [size, 4]), ("y", [size])], "outputs": [("loss", [], True), ("out", [size, 3])]}
    options = {"device": {"id": "cpu"}}
    return ORTTrainer(model, description, optim.SGDConfig(lr=0.0), nn.functional.cross_entropy, options)


def batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(size)
    return torch.randn(size, 4, generator=generator), torch.randint(3, (size,), generator=generator)


@pytest.mark.parametrize("asks", ["equals", "exceeds", "product"])
@pytest.mark.parametrize("sizes", [[1], [4, 1]], ids=["at first", "later"])
def test_a_trainer_refuses_a_size_for_which_forward_would_branch_otherwise(asks: str, sizes: list[int]) -> None:
    trainer = trainer_of(Asking(asks))
    for size in sizes[:-1]:
        trainer.train_step(*batch(size))
    with pytest.raises(InputError, match=r"the graph holds for .*x.shape\[0\].* only"):
        trainer.train_step(*batch(sizes[-1]))
    trainer.train_step(*batch(3))


@pytest.mark.parametrize("asks", ["nothing", "checks"])
def test_one_row_trains_where_the_answer_is_the_same(asks: str) -> None:
    model = Asking(asks)
    eager = copy.deepcopy(model)
    trainer = trainer_of(model)
    for size in (4, 1, 3):
        x, label = batch(size)
        loss, out = trainer.train_step(x, label)
        torch.testing.assert_close(out, eager(x).detach())
        torch.testing.assert_close(loss, nn.functional.cross_entropy(eager(x), label).detach())


@pytest.mark.parametrize("asks", ["equals", "exceeds", "product"])
def test_a_size_written_in_the_description_is_the_branch(asks: str) -> None:
    model = Asking(asks)
    x, label = batch(1)
    _, out = trainer_of(model, 1).train_step(x, label)
    torch.testing.assert_close(out, model(x).detach())


@pytest.mark.parametrize("asks", ["equals", "exceeds", "product"])
def test_a_module_captures_both_branches_once(asks: str) -> None:
    model = Asking(asks)
    ours = ORTModule(copy.deepcopy(model))
    for size in (4, 1, 3, 1, 5):
        x, _ = batch(size)
        torch.testing.assert_close(ours(x), model(x))
    assert ours._engine.captures == 2
