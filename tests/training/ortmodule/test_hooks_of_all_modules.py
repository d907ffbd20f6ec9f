"""What a caller puts around a step for all modules or operators: trackers, counters, profilers, hooks and modes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
    register_module_full_backward_hook,
)
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode
from torch.utils.module_tracker import ModuleTracker

from ontrain.errors import CaptureError
from ontrain.training.ortmodule import ORTModule

Around = Callable[[], AbstractContextManager[Any]]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 1)).double()


def losses(model: nn.Module, around: Sequence[Around]) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    history = []
    for context in around:
        with context():
            loss = model(x).square().mean()
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        history.append(loss.item())
    return history


@pytest.mark.parametrize(
    "around",
    [
        lambda: FlopCounterMode(display=False),
        ModuleTracker,
        lambda: profile(activities=[ProfilerActivity.CPU], with_modules=True, with_stack=True),
    ],
    ids=["FlopCounterMode", "ModuleTracker", "profile"],
)
def test_trackers_of_torch_leave_a_capture_alone(around: Around) -> None:
    assert losses(ORTModule(network()), [around] * 3) == pytest.approx(losses(network(), [around] * 3), rel=1e-12)


def test_flops_of_a_step_are_those_of_eager() -> None:
    counts = []
    for model in (network(), ORTModule(network())):
        with FlopCounterMode(display=False) as counter:
            model(torch.ones(5, 4, dtype=torch.float64)).sum().backward()
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0


def test_flops_of_a_step_are_those_of_eager_where_a_hook_notes_what_it_sees() -> None:
    counts, sizes = [], list[torch.Size]()
    for model in (network(), ORTModule(network())):
        model[0].register_forward_hook(lambda _, args, result: sizes.append(result.shape))
        with FlopCounterMode(display=False) as counter, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the hook
            model(torch.ones(5, 4, dtype=torch.float64))
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0 and sizes[0] == sizes[-1]


@contextmanager
def registered(register: Callable[[Any], Any], hook: Callable[..., Any]) -> Iterator[None]:
    handle = register(hook)
    try:
        yield
    finally:
        handle.remove()


def doubles_result(module: nn.Module, _: Any, result: torch.Tensor) -> torch.Tensor | None:
    return result * 2 if isinstance(module, nn.GELU) else None


def doubles_argument(module: nn.Module, arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...] | None:
    return tuple(value * 2 for value in arguments) if isinstance(module, nn.GELU) else None


def doubles_every_result(_: nn.Module, __: Any, result: torch.Tensor) -> torch.Tensor:
    return result * 2


HOOKS = [
    (register_module_forward_hook, doubles_result),
    (register_module_forward_pre_hook, doubles_argument),
    (register_module_forward_hook, doubles_every_result),
]


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore:.*forward hook of all modules:UserWarning")
@pytest.mark.parametrize(("register", "hook"), HOOKS, ids=[hook.__name__ for _, hook in HOOKS])
@pytest.mark.parametrize("first", [True, False], ids=["from the start", "later"])
def test_hooks_of_all_modules_hold_while_they_are_registered(
    register: Callable[[Any], Any], hook: Callable[..., Any], first: bool
) -> None:
    around: list[Around] = [lambda: registered(register, hook), nullcontext]
    order = (around if first else around[::-1]) * 2
    assert losses(ORTModule(network()), order) == pytest.approx(losses(network(), order), rel=1e-12)


def test_a_forward_hook_of_all_modules_is_warned_of() -> None:
    with registered(register_module_forward_hook, doubles_result), pytest.warns(UserWarning, match="doubles_result is"):
        ORTModule(network())(torch.ones(5, 4, dtype=torch.float64))


@pytest.mark.parametrize("before", [[], [nullcontext]], ids=["at once", "later"])
def test_backward_hooks_of_all_modules_are_refused(before: list[Around]) -> None:
    def triples(_: nn.Module, gradients: Any, __: Any) -> Any:
        return tuple(None if gradient is None else gradient * 3 for gradient in gradients)

    with pytest.raises(CaptureError, match="triples is a backward hook of all modules"):
        losses(ORTModule(network()), [*before, lambda: registered(register_module_full_backward_hook, triples)])


@pytest.mark.filterwarnings("ignore:.*forward hook of all modules:UserWarning")
def test_a_hook_of_all_modules_that_hooks_gradients_is_named() -> None:
    def hooks_gradient(_: nn.Module, __: Any, result: torch.Tensor) -> None:
        result.register_hook(lambda gradient: gradient * 3)

    with (
        registered(register_module_forward_hook, hooks_gradient),
        pytest.raises(CaptureError, match="hooks_gradient of all modules: registers a hook on a tensor's gradient"),
    ):
        ORTModule(network())(torch.ones(5, 4, dtype=torch.float64))


@pytest.mark.parametrize("before", [[], [nullcontext]], ids=["at once", "later"])
def test_a_mode_of_the_users_that_sees_operators_is_refused(before: list[Around]) -> None:
    class Doubling(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            return result * 2 if function is torch.ops.aten.gelu.default else result

    with pytest.raises(CaptureError, match="Doubling is to see each operator"):
        losses(ORTModule(network()), [*before, Doubling])
