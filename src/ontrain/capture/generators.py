"""Random numbers that Python or numpy draw in a forward: a trace would keep those of the capture for good."""

from __future__ import annotations

import linecache
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, TypeVar

import numpy as np
import sympy.core.random

from ontrain.capture.chances import Chances, Course, comparable
from ontrain.capture.entropy import entropy_refused
from ontrain.capture.reachable import reachable
from ontrain.capture.source import is_foreign, line_text
from ontrain.capture.ways_out import BROKEN
from ontrain.errors import CaptureError

__all__ = ["DrawnNumberError", "Run", "branching_on_draws", "without_draws"]

T = TypeVar("T")
Run = Callable[[Callable[[], Any]], Any]
"""Calls a function and returns its result."""
_Draw = tuple[str, str, int, int]
"""A generator's type, the file and line that moved it, and its state after that."""
_RUNS, _PAUSE = 4, 0.1
_KINDS = (random.Random, np.random.Generator, np.random.RandomState)
_FUNCTIONS: tuple[Any, ...] = random.random, np.random.random_sample
_OWN = tuple(function.__self__ for function in _FUNCTIONS)
"""What the functions of the modules draw from."""
_PASSED = frozenset({"numpy", "sympy", "mpmath"})
"""Packages whose lines are not looked at: a draw in numpy is of the line that calls it, and torch runs the others."""
_CHECKS = "<@beartype"
"""What the files are called in which beartype checks arguments; a draw there picks the item of a list to check."""
_WAY_OUT = (
    "compare the number itself and train it with ORTModule, which captures each branch of `if random.random() < p`; "
    "decide outside and hand the decision in as an argument (each value of a bool is captured once); or draw a tensor "
    "and choose with torch.where(torch.rand(()) < p, a, b); for layers that a library drops, and masks that it draws "
    f"over features, set the rates to zero (config.layerdrop = 0, config.mask_time_prob = 0); or {BROKEN}"
)


class DrawnNumberError(CaptureError):
    """Forward draws from a generator of Python's or numpy's."""


def branching_on_draws(trace: Callable[[Run], T], *, from_torch: bool) -> tuple[T, Course] | None:
    """Return what `trace` returns, and what forward draws and compares on the branches that it takes now.

    None if forward does anything else with a number that it draws, or draws in another way. The generators have the
    states again that they had.

    Args:
        trace: as for `without_draws`.
        from_torch: whether numbers of torch's generator are meant, too; if not, they are drawn in the graph.
    """
    chances = Chances(from_torch=from_torch)
    watch = _Watch(chances)
    try:
        result = trace(watch)
    except Exception:  # noqa: BLE001 - whatever a user's code raises on what is no number
        watch.restore()
        return None
    watch.restore()
    return (result, chances.course) if not watch.moved_others and chances.account_for_all() else None


def without_draws(trace: Callable[[Run], T]) -> T:
    """Return what `trace` returns, unless the forward that it runs draws from a generator of Python's or numpy's.

    All generators are looked at that forward can come to: those of Python's and numpy's functions, and what its module,
    its arguments and the variables of loaded modules hold, however deep. Where one has moved, forward is traced again,
    line by line and from the same state, until two runs agree: draws of another thread don't come at the same lines,
    and go on while this one waits. Those traces are thrown away: what forward writes to buffers would be in a trace as
    often as forward ran in it. What checks of arguments draw decides nothing, and passes. An error leaves the
    generators as they were.

    Args:
        trace: traces forward anew at each call, and calls it by what it is handed.

    Raises:
        DrawnNumberError: names the line that draws.
    """
    watch = _Watch()
    try:
        result = trace(watch)
        if not watch.moved:
            return result
        watch.look_by_line()
        for _ in range(_RUNS):
            before = watch.draws
            trace(watch)
            if not watch.moved:
                return result
            if watch.draws and not any(map(_counts, watch.draws)):
                watch.restore()
                return result
            if watch.draws and watch.draws == before and not watch.moves_alone():
                break
        else:
            return result
    except BaseException:
        watch.restore()
        raise
    watch.restore()
    kind, file, line, _ = next(filter(_counts, watch.draws))
    raise DrawnNumberError(
        f"forward draws random numbers from {kind}",
        source=line_text(file, line, linecache.getline(file, line)),
        reason="the graph would keep the numbers of its capture in all steps",
        way_out=_WAY_OUT,
    )


def _counts(draw: _Draw) -> bool:
    """Whether forward draws, not a check of its arguments."""
    return not draw[1].startswith(_CHECKS)


class _Watch:
    """Runs a forward, from the same state of all generators each time.

    Args:
        chances: what lets forward branch on numbers that it draws, if it may.

    Attributes:
        moved: whether a generator moved in the last run.
        moved_others: whether one did that is not of the functions of Python's and numpy's modules.
        by_line: whether the lines are looked for that move one.
        draws: those of the last run.
    """

    def __init__(self, chances: Chances | None = None) -> None:
        self._chances = chances
        self.moved, self.moved_others, self.by_line = False, False, False
        self.draws: list[_Draw] = []
        self._generators: _Generators | None = None

    def __call__(self, forward: Callable[[], Any]) -> Any:
        if self._generators is None:
            self._generators = _Generators(forward)
        self.restore()
        with entropy_refused(_WAY_OUT):
            if self._chances is not None:
                result = self._chances.run(forward)
            elif self.by_line:
                result, self.draws = _draws(forward, self._generators)
            else:
                result = forward()
        moved = self._generators.moved()
        self.moved = bool(moved)
        self.moved_others = any(all(generator is not own for own in _OWN) for generator in moved)
        return result

    def look_by_line(self) -> None:
        """From now on look for the lines that move those generators which have moved."""
        assert self._generators is not None
        self.by_line = True
        self._generators.keep(self._generators.moved())

    def moves_alone(self) -> bool:
        """Whether a generator moves while this thread does nothing: another one draws from it."""
        assert self._generators is not None
        self.restore()
        time.sleep(_PAUSE)
        return bool(self._generators.moved())

    def restore(self) -> None:
        """Give the generators the states that they had before the first run."""
        if self._generators is not None:
            self._generators.restore()


class _Generators:
    """The generators of Python's and numpy's that a forward can come to, and the states that they had.

    Those of sympy are left out: torch simplifies the sizes of a trace with them. So are those that draw the names of
    temporary files and of locks, which an import within forward may make.
    """

    def __init__(self, forward: Callable[[], Any]) -> None:
        held = {id(generator): generator for generator in (*_OWN, *reachable([forward], _KINDS))}
        others = {id(value) for value in (*vars(sympy.core.random).values(), *_drawing_names())}
        self._held = [
            generator
            for own, generator in held.items()
            if own not in others and not isinstance(generator, random.SystemRandom)
        ]
        self._before = [_state(generator) for generator in self._held]

    def keep(self, generators: Sequence[Any]) -> None:
        """Forget all but these."""
        known = {id(generator) for generator in generators}
        pairs = [pair for pair in zip(self._held, self._before, strict=True) if id(pair[0]) in known]
        self._held, self._before = [generator for generator, _ in pairs], [state for _, state in pairs]

    def moved(self) -> list[Any]:
        """Return those whose state is another."""
        pairs = zip(self._held, self._before, strict=True)
        return [generator for generator, before in pairs if comparable(_state(generator)) != comparable(before)]

    def restore(self) -> None:
        """Give those that moved the state that they had."""
        moved = {id(generator) for generator in self.moved()}
        for generator, before in zip(self._held, self._before, strict=True):
            if id(generator) not in moved:
                continue
            if isinstance(generator, random.Random):
                generator.setstate(before)
            elif isinstance(generator, np.random.RandomState):
                generator.set_state(before)
            else:
                generator.bit_generator.state = before


def _drawing_names() -> list[Any]:
    locks = getattr(sys.modules.get("multiprocessing.synchronize"), "SemLock", None)
    makers = getattr(tempfile, "_name_sequence", None), getattr(locks, "_rand", None)
    return [getattr(maker, "_rng", None) for maker in makers]


def _state(generator: Any) -> Any:
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    return generator.bit_generator.state


def _draws(function: Callable[[], Any], generators: _Generators) -> tuple[Any, list[_Draw]]:
    """Call a function line by line, in this thread; return its result and the lines during which a generator moved."""
    draws: list[_Draw] = []
    last: list[tuple[str, int]] = []
    running: list[FrameType] = []
    states = {id(generator): comparable(_state(generator)) for generator in generators.moved()}

    def look() -> None:
        for generator in generators.moved():
            state = comparable(_state(generator))
            if last and states.get(id(generator)) != state:
                states[id(generator)] = state
                kind = type(generator)
                draws.append((f"{kind.__module__.split('.')[0]}.{kind.__name__}", *last[0], hash(repr(state))))

    def step(frame: FrameType, event: str, argument: Any) -> Any:
        look()
        if event == "call":
            running.append(frame)
        elif event == "return" and running:
            running.pop()
        # Behind a call the rest of the caller's line goes on, be it a call of a collector of garbage.
        frame = running[-1] if running else frame
        last[:] = [(frame.f_code.co_filename, frame.f_lineno)]
        return step

    def enter(frame: FrameType, event: str, argument: Any) -> Any:
        package = str(frame.f_globals.get("__name__")).split(".")[0]
        file = frame.f_code.co_filename
        # What was typed at a prompt is in no file.
        if package not in _PASSED and (is_foreign(file) or file.startswith(_CHECKS) or package == "__main__"):
            return step(frame, event, argument)
        return None

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        result = function()
    finally:
        sys.settrace(before)
    look()
    return result, draws
