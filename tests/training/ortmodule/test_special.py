"""Special methods of the wrapped module's class: `for layer in model`, `name in model`, `del model[0]`."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterable, Iterator
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


class Owner(nn.Linear):
    """Has its own ways of doing what `nn.Module` does."""

    frozen = ("bias",)

    def to(self, *args: Any, **kwargs: Any) -> Owner:
        self.moved_to = args
        return super().to(*args, **kwargs)

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        return (parameter for name, parameter in self.named_parameters() if name not in self.frozen)

    def eval(self) -> Owner:
        super().eval()
        self.asked = True
        return self

    def compile(self, learning_rate: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), learning_rate)


class Looped(nn.Linear):
    """Whose `train` is a loop of steps."""

    def train(self, x: torch.Tensor | bool = True, steps: int = 0) -> Any:
        if isinstance(x, bool):
            return super().train(x)
        losses = []
        for _ in range(steps):
            self.zero_grad()
            loss = self(x).square().mean()
            loss.backward()
            with torch.no_grad():
                for parameter in self.parameters():
                    parameter -= 0.1 * parameter.grad
            losses.append(loss.item())
        return losses


class Scaled(nn.Linear):
    """Gives other results in training mode."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * (3 if self.training else 1)


def test_what_a_class_has_in_place_of_torchs_is_called() -> None:
    ours = ORTModule(Owner(3, 2))
    assert ours.to("cpu") is ours and ours.module.moved_to == ("cpu",)
    assert [id(parameter) for parameter in ours.parameters()] == [id(ours.weight)]
    assert ours.eval() is ours and ours.module.asked and not ours.module.training
    assert ours.compile(0.1).param_groups[0]["params"] == [ours.weight]
    assert type(copy.deepcopy(ours)) is type(ours)


def test_a_train_of_its_own_runs_its_loop() -> None:
    torch.manual_seed(0)
    eager = Looped(3, 2)
    ours = ORTModule(copy.deepcopy(eager))
    assert ours.eval() is ours and not ours.module.training and ours.train() is ours and ours.module.training
    torch.testing.assert_close(ours.train(X, steps=3), eager.train(X, steps=3))
    assert ours._engine.captures == 1
    torch.testing.assert_close(ours.state_dict(), eager.state_dict())


def test_the_flag_of_the_mode_is_the_modules() -> None:
    ours = ORTModule(Scaled(3, 2))
    ours(X)
    ours.training = False
    assert not ours.module.training
    torch.testing.assert_close(ours(X), ours.module(X))
    ours.module.train()
    assert ours.training


@pytest.mark.parametrize("policy", ["FALLBACK_DISABLE", "FALLBACK_UNSUPPORTED_DATA|FALLBACK_UNSUPPORTED_DEVICE"])
def test_torch_loads_a_saved_wrapper_where_the_modules_classes_are_allowed(policy: str) -> None:
    ours = ORTModule(sequence(), fallback=policy)
    file = io.BytesIO()
    torch.save(ours, file)
    file.seek(0)
    with torch.serialization.safe_globals([nn.Sequential, nn.Linear, nn.Tanh]):
        loaded = torch.load(file, weights_only=True)
    assert type(loaded) is type(ours)
    torch.testing.assert_close(loaded(X), ours(X))
