"""What happens between the runs of a plan: a look at other work on the machine, and at choices that were replaced.

Plans are made and run without the default device of the caller, and without other modes that see torch's functions:
all that a plan touches is where the plan is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

import torch

from ontrain.internals import without_function_modes
from ontrain.locks import Lock
from ontrain.providers.base import Array, NodeTime, OperatorTime
from ontrain.providers.torch.executable import TorchExecutable
from ontrain.providers.torch.module_executable import Tape, TorchModuleExecutable
from ontrain.providers.torch.neighbours import neighbours
from ontrain.providers.torch.products import Product
from ontrain.providers.torch.tuning import Choices

__all__ = ["Plan", "PlanOfHalves"]

_Made = TypeVar("_Made", TorchExecutable, TorchModuleExecutable)


class _Between(Generic[_Made]):
    """A plan that is lowered anew from its graph when a choice of formulations was replaced.

    Args:
        lower: lowers the graph and plans its memory.
        choices: that the lowering asks; None if it asks none.
    """

    def __init__(self, lower: Callable[[], _Made], choices: Choices | None) -> None:
        self._lower: Callable[[], _Made] = lower
        self._choices, self._lock = choices, Lock()
        self._version = choices.version() if choices is not None else 0
        with without_function_modes():
            self.current: _Made = lower()
        """The plan as it is run now."""

    @property
    def planned_bytes(self) -> int:
        """Bytes of working memory: of a run, or of each forward whose backward has not come yet."""
        return self.current.planned_bytes

    @property
    def launched(self) -> str:
        """How runs, or halves of them, are made, in words."""
        return self.current.launched

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


class Plan(_Between[TorchExecutable]):
    """The executable of a whole step; see `ontrain.providers.Executable`.

    Args:
        lower: lowers the graph and plans its memory.
        choices: that the lowering asks; None if it asks none.
        apart: lowers the graph with a call for each node, for who looks at a run node by node.
    """

    def __init__(
        self, lower: Callable[[], TorchExecutable], choices: Choices | None, apart: Callable[[], TorchExecutable]
    ) -> None:
        super().__init__(lower, choices)
        self._lower_apart = apart
        self._apart: TorchExecutable | None = None

    def run(
        self, feeds: Mapping[str, Array], *, rng: tuple[int, int] = (0, 0), guard: str | None = None
    ) -> dict[str, torch.Tensor]:
        """Run once."""
        with without_function_modes():
            return self._look().run(feeds, rng=rng, guard=guard)

    def profile(self, feeds: Mapping[str, Array], *, rng: tuple[int, int] = (0, 0)) -> list[OperatorTime]:
        """Run once with a clock around every call."""
        with without_function_modes():
            return self._node_by_node().profile(feeds, rng=rng)

    def trace(
        self, feeds: Mapping[str, Array], *, rng: tuple[int, int] = (0, 0)
    ) -> tuple[dict[str, torch.Tensor], list[NodeTime]]:
        """Run once with a clock around every call; return the outputs and the calls."""
        with without_function_modes():
            return self._node_by_node().trace(feeds, rng=rng)

    def _node_by_node(self) -> TorchExecutable:
        if not self.current.joined:
            return self.current
        if self._apart is None:
            self._apart = self._lower_apart()
        return self._apart

    @property
    def products(self) -> Counter[Product]:
        """The matrix products of one run, those of small nodes among them."""
        return self._node_by_node().products


class PlanOfHalves(_Between[TorchModuleExecutable]):
    """The executable of a module's halves; see `ontrain.providers.ModuleExecutable`."""

    @property
    def stochastic(self) -> bool:
        """Whether forward draws random numbers."""
        return self.current.stochastic

    @property
    def reads(self) -> list[str]:
        """Names of resident inputs that backward reads."""
        return self.current.reads

    def forward(self, feeds: Mapping[str, torch.Tensor], seed: int = 0) -> tuple[dict[str, torch.Tensor], Tape]:
        """Run the forward half."""
        with without_function_modes():
            return self._look().forward(feeds, seed)

    def backward(self, tape: Tape, adjoints: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Run the backward half on a tape, by the plan that made it."""
        with without_function_modes():
            return tape.maker.backward(tape, adjoints)
