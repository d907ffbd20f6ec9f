"""Random numbers that Python or numpy draw in a forward: a trace would keep those of the capture for good."""

from __future__ import annotations

import gc
import linecache
import random
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np

from ontrain.capture.source import is_foreign, line_text
from ontrain.errors import CaptureError

__all__ = ["without_draws"]

_KINDS = (random.Random, np.random.Generator, np.random.RandomState)
_WAY_OUT = (
    "decide outside and hand the decision in as an argument (each value of a bool is captured once); or draw a tensor "
    "and choose with torch.where(torch.rand(()) < p, a, b); for layers that a library drops, set their rate to zero "
    "(config.layerdrop = 0)"
)


def without_draws(forward: Callable[[], Any]) -> Any:
    """Return what forward returns, unless it draws from a generator of Python's or numpy's.

    All generators of the process are looked at: the modules' own, and those that somebody holds anywhere. Where one
    has moved, forward is run again line by line, which tells its draws from those of another thread. An error leaves
    the generators as they were.

    Raises:
        CaptureError: names the line that draws.
    """
    generators = _Generators()
    finished = False
    try:
        result = forward()
        finished = True
    finally:
        if not finished:
            generators.restore()
    if not generators.moved():
        return result
    generators.restore()
    lines = _Lines(generators)
    try:
        lines.run(forward)
    finally:
        generators.restore()
    if lines.draw is None:
        return result
    kind, file, line = lines.draw
    raise CaptureError(
        f"forward draws random numbers from {kind}",
        source=line_text(file, line, linecache.getline(file, line)),
        reason="the graph would keep the numbers of its capture in all steps",
        way_out=_WAY_OUT,
    )


class _Generators:
    """All generators of Python's and numpy's that somebody holds, and the states that they had."""

    def __init__(self) -> None:
        # By type, for a proxy may answer for the class of what it stands for.
        held = [one for one in gc.get_objects() if issubclass(type(one), _KINDS)]
        self._held = [one for one in held if not isinstance(one, random.SystemRandom)]
        self._before = [_state(one) for one in self._held]

    def moved(self) -> list[Any]:
        """Return those whose state is another."""
        pairs = zip(self._held, self._before, strict=True)
        return [one for one, before in pairs if _comparable(_state(one)) != _comparable(before)]

    def restore(self) -> None:
        """Give those that moved the state that they had."""
        moved = {id(one) for one in self.moved()}
        for one, before in zip(self._held, self._before, strict=True):
            if id(one) not in moved:
                continue
            if isinstance(one, random.Random):
                one.setstate(before)
            elif isinstance(one, np.random.RandomState):
                one.set_state(before)
            else:
                one.bit_generator.state = before


def _state(generator: Any) -> Any:
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    return generator.bit_generator.state


def _comparable(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: _comparable(value) for key, value in state.items()}
    return state.tobytes() if isinstance(state, np.ndarray) else state


class _Lines:
    """Runs a function and remembers the line of the user's, or of a model library's, during which a generator moved.

    Attributes:
        draw: whose generator, the file and the line; None if none has moved.
    """

    def __init__(self, generators: _Generators) -> None:
        self._generators = generators
        self._last: tuple[str, int] | None = None
        self.draw: tuple[str, str, int] | None = None

    def run(self, function: Callable[[], Any]) -> None:
        """Call the function under a trace of its lines, in this thread only."""
        before = sys.gettrace()
        sys.settrace(self._called)
        try:
            function()
        finally:
            sys.settrace(before)
        self._look()

    def _called(self, frame: FrameType, event: str, argument: Any) -> Any:
        package = str(frame.f_globals.get("__name__")).split(".")[0]
        file = frame.f_code.co_filename
        # What was typed at a prompt is in no file.
        if package == "numpy" or not (is_foreign(file) or file.startswith("<")):
            return None
        return self._stepped(frame, event, argument)

    def _stepped(self, frame: FrameType, event: str, argument: Any) -> Any:
        self._look()
        self._last = frame.f_code.co_filename, frame.f_lineno
        return None if self.draw else self._stepped

    def _look(self) -> None:
        if self._last is None or self.draw is not None:
            return
        moved = self._generators.moved()
        if moved:
            kind = type(moved[0])
            self.draw = f"{kind.__module__.split('.')[0]}.{kind.__name__}", *self._last
