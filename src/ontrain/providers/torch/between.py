"""What happens between the runs of a plan: a look at other work on the machine, and at choices that were replaced."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import torch

from ontrain.locks import Lock
from ontrain.providers.base import OperatorTime
from ontrain.providers.torch.executable import TorchExecutable
from ontrain.providers.torch.module import Tape, TorchModuleExecutable
from ontrain.providers.torch.neighbours import neighbours
from ontrain.providers.torch.tuning import Choices

__all__ = ["Plan", "PlanOfHalves"]

_Made = TypeVar("_Made")


class _Between(Generic[_Made]):
    """A plan that is lowered anew from its graph when a choice of formulations was replaced.

    Args:
        lower: lowers the graph and plans its memory.
        choices: that the lowering asks; None if it asks none.
    """

    def __init__(self, lower: Callable[[], _Made], choices: Choices | None) -> None:
        self._lower, self._choices, self._lock = lower, choices, Lock()
        self._version = choices.version() if choices is not None else 0
        self.current: _Made = lower()
        """The plan as it is run now."""

    def _look(self) -> _Made:
        neighbours.look()
        if self._choices is not None:
            self._choices.review()
            version = self._choices.version()
            if version != self._version:
                with self._lock:
                    if version != self._version:
                        self.current, self._version = self._lower(), version
        return self.current

    def __getattr__(self, name: str) -> Any:
        return getattr(self.current, name)


class Plan(_Between[TorchExecutable]):
    """The executable of a whole step; see `ontrain.providers.Executable`."""

    def run(
        self, feeds: Mapping[str, Any], *, rng: tuple[int, int] = (0, 0), guard: str | None = None
    ) -> dict[str, Any]:
        """Run once."""
        return self._look().run(feeds, rng=rng, guard=guard)

    def profile(self, feeds: Mapping[str, Any], *, rng: tuple[int, int] = (0, 0)) -> list[OperatorTime]:
        """Run once with a clock around every call."""
        return self.current.profile(feeds, rng=rng)

    @property
    def planned_bytes(self) -> int:
        """Bytes of working memory."""
        return self.current.planned_bytes


class PlanOfHalves(_Between[TorchModuleExecutable]):
    """The executable of a module's halves; see `ontrain.providers.ModuleExecutable`."""

    def __init__(self, lower: Callable[[], TorchModuleExecutable], choices: Choices | None) -> None:
        super().__init__(lower, choices)
        self._makers: WeakKeyDictionary[Tape, TorchModuleExecutable] = WeakKeyDictionary()

    def forward(self, feeds: Mapping[str, torch.Tensor], seed: int = 0) -> tuple[dict[str, torch.Tensor], Tape]:
        """Run the forward half."""
        plan = self._look()
        outputs, tape = plan.forward(feeds, seed)
        self._makers[tape] = plan
        return outputs, tape

    def backward(self, tape: Tape, adjoints: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Run the backward half on a tape, by the plan that made it."""
        return self._makers[tape].backward(tape, adjoints)
