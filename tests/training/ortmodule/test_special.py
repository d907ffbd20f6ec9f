"""Special methods of the wrapped module's class: `for layer in model`, `name in model`, `del model[0]`."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import nn

from ontrain.errors import OptionError
from ontrain.training.ortmodule import ORTModule

X = torch.linspace(-1, 1, 6).reshape(2, 3)


class Tasks(nn.ModuleDict):
    """A head for each task."""

    def forward(self, x: torch.Tensor, task: str) -> torch.Tensor:
        return self[task](x)


class Switched(nn.Linear):
    """Is on within a block; `model @ x` applies it."""

    on = False

    def __enter__(self) -> Switched:
        self.on = True
        return self

    def __exit__(self, *failure: object) -> None:
        self.on = False

    def __matmul__(self, x: torch.Tensor) -> torch.Tensor:
        return self(x)

    def __str__(self) -> str:
        return "switched"


def sequence() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2))


def test_a_sequence_loses_and_gains_layers() -> None:
    eager = sequence()
    ours = ORTModule(copy.deepcopy(eager))
    for change in ("del", "+=", "*="):
        results = []
        for model in (eager, ours):
            changed: Any = model
            if change == "del":
                del changed[1]
            elif change == "+=":
                changed += nn.Sequential(nn.Tanh())
            else:
                changed *= 1
            assert changed is model
            results.append(changed(X))
        torch.testing.assert_close(results[1], results[0])
    assert [type(layer) for layer in ours] == [type(layer) for layer in eager]


def test_a_dictionary_of_modules_has_its_names() -> None:
    tasks = Tasks({"a": nn.Linear(3, 2), "b": nn.Linear(3, 1)})
    ours = ORTModule(tasks)
    assert list(ours) == ["a", "b"] and "a" in ours and "c" not in ours and len(ours) == 2
    torch.testing.assert_close(ours(X, "b"), tasks(X, "b"))
    del ours["a"]
    assert list(tasks) == ["b"]


def test_own_special_methods_are_there() -> None:
    ours = ORTModule(Switched(3, 2))
    with ours as inside:
        assert inside is ours and ours.on
    assert not ours.on and str(ours) == "switched"
    torch.testing.assert_close(ours @ X, ours(X))


def test_a_wrapper_has_no_special_method_that_the_module_lacks() -> None:
    ours = ORTModule(nn.Linear(3, 2))
    assert type(ours) is ORTModule and not isinstance(ours, Iterable)
    with pytest.raises(TypeError):
        "weight" in ours  # noqa: B015 - is to be asked


def test_what_it_is_stays() -> None:
    ours = ORTModule(sequence())
    assert isinstance(ours, ORTModule) and isinstance(ours, nn.Sequential)
    double = copy.deepcopy(ours)
    assert type(double) is type(ours)
    torch.testing.assert_close(double(X), ours(X))
    with pytest.raises(OptionError, match="is an ORTModule already"):
        ORTModule(ours)
