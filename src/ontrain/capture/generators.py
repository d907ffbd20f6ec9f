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

_Draw = tuple[str, str, int, int]
"""A generator's type, the file and line that moved it, and its state after that."""
_RUNS = 4
_KINDS = (random.Random, np.random.Generator, np.random.RandomState)
_WAY_OUT = (
    "decide outside and hand the decision in as an argument (each value of a bool is captured once); or draw a tensor "
    "and choose with torch.where(torch.rand(()) < p, a, b); for layers that a library drops, set their rate to zero "
    "(config.layerdrop = 0)"
)


def without_draws(forward: Callable[[], Any]) -> Any:
    """Return what forward returns, unless it draws from a generator of Python's or numpy's.

    All generators of the process are looked at: the modules' own, and those that somebody holds anywhere. Where one
    has moved, forward is run again line by line from the same state until two runs agree: draws of another thread don't
    come at the same lines. An error leaves the generators as they were.

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
    found: list[_Draw] = []
    for _ in range(_RUNS):
        generators.restore()
        before, found = found, _draws(forward, generators)
        if found and found == before:
            break
    else:
        return result
    generators.restore()
    kind, file, line, _ = found[0]
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


def _draws(function: Callable[[], Any], generators: _Generators) -> list[_Draw]:
    """Call a function line by line, in this thread, and return the lines during which a generator moved."""
    found: list[_Draw] = []
    last: list[tuple[str, int]] = []
    states = {id(one): _comparable(_state(one)) for one in generators.moved()}

    def look() -> None:
        for one in generators.moved():
            state = _comparable(_state(one))
            if last and states.get(id(one)) != state:
                states[id(one)] = state
                kind = type(one)
                found.append((f"{kind.__module__.split('.')[0]}.{kind.__name__}", *last[0], hash(repr(state))))

    def step(frame: FrameType, event: str, argument: Any) -> Any:
        look()
        last[:] = [(frame.f_code.co_filename, frame.f_lineno)]
        return step

    def enter(frame: FrameType, event: str, argument: Any) -> Any:
        package = str(frame.f_globals.get("__name__")).split(".")[0]
        file = frame.f_code.co_filename
        # What was typed at a prompt is in no file.
        if package == "numpy" or not (is_foreign(file) or file.startswith("<")):
            return None
        return step(frame, event, argument)

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        function()
    finally:
        sys.settrace(before)
    look()
    return found
