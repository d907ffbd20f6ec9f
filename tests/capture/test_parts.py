"""Modules with one part at two places, whose forward asks what its parts are."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from ontrain.training.ortmodule import ORTModule


class Tied(nn.Module):
    """Has one layer at two places beside another layer, and weighs each by what `factor` says of it."""

    def __init__(self, factor: Callable[["Tied", nn.Module], float]) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3, dtype=torch.float64)
        self.second = self.first
        self.third = nn.Linear(3, 3, dtype=torch.float64)
        self.factor = factor
        self.order = [self.third, self.first]
        self.scales = {self.third: 2.0, self.first: 3.0}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        layers = self.first, self.second, self.third
        return sum((layer(x) * self.factor(self, layer) for layer in layers), torch.zeros(())).square().mean()


class Listed(nn.Linear):
    """Lists the classes that derive from it by name, and asks each for its rank."""

    ranks: dict[str, tuple[type, int]] = {}

    def __init_subclass__(cls, rank: int) -> None:
        cls.ranks[cls.__name__] = cls, rank


class Ranked(Listed, rank=2):
    """A layer of the list."""


class Pair(nn.Module):
    """Makes another of its own class in forward."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def swapped(self) -> "Pair":
        return type(self)(self.layers[1], self.layers[0])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
        return x


def losses_and_gradients(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    loss = model(x)
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


def assert_as_eager(model: nn.Module) -> None:
    wrapped = ORTModule(copy.deepcopy(model))
    for rows in (2, 5):
        x = torch.randn(rows, 3, dtype=torch.float64)
        torch.testing.assert_close(losses_and_gradients(wrapped, x), losses_and_gradients(model, x))


@pytest.mark.parametrize(
    "factor",
    [
        lambda model, layer: 2.0 if type(layer) is nn.Linear else 5.0,
        lambda model, layer: 2.0 if layer is model.order[1] else 5.0,
        lambda model, layer: model.scales[layer],
        lambda model, layer: 1.0 + model.order.index(layer),
        lambda model, layer: 2.0 if any(layer is part for part in model.children()) else 5.0,
    ],
    ids=["class", "identity", "key", "index", "children"],
)
def test_a_part_at_two_places_is_what_it_is_in_eager(factor: Any) -> None:
    assert_as_eager(Tied(factor))


def test_the_class_of_a_part_hears_of_no_other_class() -> None:
    model = Tied(lambda model, layer: 1.0 + model.third.ranks["Ranked"][1])
    model.third = Ranked(3, 3, dtype=torch.float64)
    assert_as_eager(model)
    assert Listed.ranks == {"Ranked": (Ranked, 2)}


def test_a_part_may_make_another_of_its_class() -> None:
    class Swapping(Tied):
        def __init__(self) -> None:
            super().__init__(lambda model, layer: 1.0)
            self.pair = Pair(self.first, nn.Linear(3, 3, dtype=torch.float64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(self.pair.swapped()(x))

    assert_as_eager(Swapping())
