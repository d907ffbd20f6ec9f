"""Which attributes a forward reads while it is traced."""

import copy

import pytest
import torch
from torch import nn

from ontrain.capture import capture


class Scaled(nn.Module):
    """Reads one of its numbers, and looks for another one that is not there."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.scale, self.step = 2.0, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * self.scale * getattr(self, "extra", 1.0)


class OfDictionary(Scaled):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * vars(self)["scale"]


class OfCopy(Scaled):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * copy.copy(self).scale


class OwnWay(Scaled):
    def __getattribute__(self, name: str) -> object:
        return super().__getattribute__("scale" if name == "factor" else name)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * self.factor


class InBranches(Scaled):
    """torch.cond has TorchDynamo read the attributes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        return torch.cond(y.sum() > 0, lambda y: y * self.scale, lambda y: y - self.scale, (y,))


def names_read(module: nn.Module) -> dict[int, frozenset[str]]:
    return dict(capture(module, (torch.ones(4, 3),), reads=True).reads)


def test_names_that_forward_looks_up_are_noted_whether_they_are_there_or_not() -> None:
    module = Scaled()
    names = names_read(module)[id(vars(module))]
    assert {"scale", "extra", "layer"} <= names and "step" not in names


def test_attributes_of_submodules_are_noted() -> None:
    module = nn.Sequential(nn.Dropout(0.0), nn.Linear(3, 2))
    assert "p" in names_read(module)[id(vars(module[0]))]


@pytest.mark.parametrize("kind", [OfDictionary, OfCopy, OwnWay, InBranches])
def test_a_module_whose_attributes_are_read_in_other_ways_is_left_out(kind: type[Scaled]) -> None:
    module = kind()
    assert id(vars(module)) not in names_read(module)


def test_classes_are_afterwards_what_they_were() -> None:
    before = dict(vars(Scaled)), dict(vars(nn.Linear))
    names_read(Scaled())
    assert (dict(vars(Scaled)), dict(vars(nn.Linear))) == before


def test_nothing_is_noted_unless_somebody_asks_for_it() -> None:
    assert not capture(Scaled(), (torch.ones(4, 3),)).reads
