"""Runs of a graph that holds one path of a forward that branches on values, or on numbers that it draws."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import torch

from ontrain.capture import Course, Decision, Decisions, GeneratorStates
from ontrain.errors import CaptureError, OntrainError
from ontrain.training.ortmodule.reading import writing, written

__all__ = ["PathDraws", "OtherPathError", "Running", "new_path", "on_path", "warn_of_courses"]
_MANY_PATHS = 8


class Running(Protocol):
    """What runs a graph's forward half; see `ModuleSession`."""

    device: torch.device
    selective: bool

    def plan(self, inputs: Sequence[torch.Tensor], *, outputs: tuple[str, ...] | None = None) -> Any:
        """Return what computes these outputs, or all."""

    def forward(self, plan: Any, inputs: Sequence[torch.Tensor], seed: int) -> tuple[dict[str, torch.Tensor], Any]:
        """Return outputs by name and the tape."""


class OtherPathError(Exception):
    """The values of a call lead to another path than the graph's; its cause is what the graph raised on them, if so.

    Attributes:
        decision: the first condition that does not hold; None if the graph raised before that was known.
    """

    def __init__(self, decision: Decision | None = None) -> None:
        super().__init__(decision)
        self.decision = decision


def on_path(
    decisions: Decisions, buffers: Mapping[str, torch.Tensor], session: Running, plan: Any,
    inputs: Sequence[torch.Tensor], seed: int,
) -> tuple[dict[str, torch.Tensor], Any]:  # fmt: skip
    """Return what a run returns, outputs and tape, if its values take the path that the graph holds.

    Args:
        decisions: the path.
        buffers: those that the run may write to. After a run off the path they are what they were.
        session: runs it.
        plan: of the session; computes the graph's outputs, those that the path is decided by among them.
        inputs: of the call.
        seed: of the random numbers that it draws.

    Raises:
        OtherPathError: the values take another one.
    """
    writing(buffers.values())
    if not decisions.conditions:
        result = session.forward(plan, inputs, seed)
        written(buffers.values())
        return result
    before = {name: buffer.clone() for name, buffer in buffers.items()}
    violated, cause = None, None
    try:
        if _ends_at_errors(session.device):
            _look_ahead(decisions, buffers, before, session, inputs, seed)
        outputs, tape = session.forward(plan, inputs, seed)
        violated = decisions.violated(decisions.numbers(outputs))
        if violated is None:
            written(buffers.values())
            return outputs, tape
    except (OntrainError, RuntimeError, IndexError) as error:  # values for which the path was never meant
        cause = error
    for name, buffer in buffers.items():
        buffer.copy_(before[name])
    raise OtherPathError(violated) from cause


def _ends_at_errors(device: torch.device) -> bool:
    """Whether a kernel that meets an index out of range leaves the device unusable, where others raise an error."""
    return device.type == "cuda"


def _look_ahead(
    decisions: Decisions, buffers: Mapping[str, torch.Tensor], before: Mapping[str, torch.Tensor], session: Running,
    inputs: Sequence[torch.Tensor], seed: int,
) -> None:  # fmt: skip
    """Ask one condition after another, and compute no more for each than what it is asked of.

    What lies behind a condition that does not hold may be computed of values for which the path was never meant.

    Raises:
        OtherPathError: the values take another path.
    """
    numbers: dict[str, Any] = {}
    for decision in decisions.conditions if session.selective else ():
        asked = sorted(decision.condition.symbols() & decisions.outputs.keys())
        if not numbers.keys() >= set(asked):
            known = Decisions(outputs={symbol: decisions.outputs[symbol] for symbol in (*numbers, *asked)})
            plan = session.plan(inputs, outputs=tuple(dict.fromkeys(known.outputs.values())))
            numbers = known.numbers(session.forward(plan, inputs, seed)[0])
            for name, buffer in buffers.items():
                buffer.copy_(before[name])
        if Decisions([decision]).violated(numbers) is not None:
            raise OtherPathError(decision)


class PathDraws:
    """The masks that a call draws, and the random numbers that choose its path, as forward would draw them.

    Attributes:
        masks: of the path that was led to last.
    """

    def __init__(self) -> None:
        self._start: GeneratorStates | None = None
        self.masks: list[torch.Tensor] = []

    def lead_to(self, course: Course, masks: Callable[[], list[torch.Tensor]] | None) -> bool:
        """Whether forward would take this path now. If so, the generators have moved as by forward.

        Args:
            course: the path.
            masks: draws those that forward draws before all other numbers, if it draws any; they are `masks` then.
        """
        self.masks = []
        if not course and masks is None:
            return True
        self._begin(masks)
        assert self._start is not None
        if course.follow():
            return True
        self._start.restore()
        return False

    def skip_masks(self, masks: Callable[[], list[torch.Tensor]] | None) -> None:
        """Leave the generators where forward begins to choose its path: behind its masks, if it draws any."""
        if masks is not None:
            self._begin(masks)

    def _begin(self, masks: Callable[[], list[torch.Tensor]] | None) -> None:
        """Draw masks from where the generators stood before the call."""
        if self._start is None:
            self._start = GeneratorStates()
        else:
            self._start.restore()
        if masks is not None:
            self.masks = masks()

    def undo(self) -> None:
        """Give the generators the states that they had before the call."""
        if self._start is not None:
            self._start.restore()


def warn_of_courses(kind: str, courses: Sequence[Course]) -> None:
    """Warn where forward has taken many paths by random numbers.

    Args:
        kind: of the module.
        courses: those of all captures of one structure of arguments.
    """
    drawn = [course for course in courses if course]
    if len(drawn) == _MANY_PATHS:
        warnings.warn(
            f"{kind} took {_MANY_PATHS} paths by random numbers, and each is captured once. It draws at "
            f'{drawn[-1].source}. ORTModule(model, breaks="allow") captures the pieces between the branches instead; '
            "for layers that a library drops, their rate may be zero (config.layerdrop = 0).",
            stacklevel=8,
        )


class _Held(Protocol):
    @property
    def decisions(self) -> Decisions:
        """The path."""


E = TypeVar("E", bound=_Held)


def new_path(entry: E, tried: Mapping[E, OtherPathError]) -> E:
    """Return a capture that was made because a call takes none of the paths that were tried.

    Raises:
        CaptureError: it is of one of those paths.
        Exception: what the graph of the same path raised.
    """
    conditions = [decision.condition for decision in entry.decisions.conditions]
    for other, error in tried.items():
        if [decision.condition for decision in other.decisions.conditions] != conditions:
            continue
        if error.__cause__ is not None:
            raise error.__cause__
        raise CaptureError(
            "the module branches on values that are others each time it runs",
            source=error.decision.source if error.decision is not None else None,
            reason="the graph of the branches that this batch takes does not take them itself",
            way_out='ORTModule(model, breaks="allow") runs the pieces between the branches',
        )
    if len(tried) == _MANY_PATHS:
        decision = next(iter(tried.values())).decision
        warnings.warn(
            f"a batch takes none of {_MANY_PATHS} paths that forward took before; each is captured once. Forward "
            f"branches on values at {decision.source if decision is not None else 'many lines'}. "
            'ORTModule(model, breaks="allow") captures the pieces between the branches instead.',
            stacklevel=8,
        )
    return entry
