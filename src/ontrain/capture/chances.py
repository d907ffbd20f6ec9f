"""Branches on random numbers: what forward drew while it was traced, what it asked of the numbers, and the answers.

    if random.random() < 0.1:   →   the branch that the call takes is traced, and a graph has what leads to it:
        return x                    `random.random()`, `< 0.1`, False

A run draws the same numbers from the same generators before it begins. Where an answer is another one, forward would
take another branch; the caller takes or captures the graph of that branch.
"""

from __future__ import annotations

import inspect
import operator
import random
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

import numpy as np
import torch

from ontrain.capture.source import current_line, is_foreign
from ontrain.errors import CaptureError
from ontrain.internals import substituted

__all__ = ["Chances", "Course", "GeneratorStates", "comparable"]

T = TypeVar("T")
_OUTCOMES = 16
"""Of how many values a number may be that has one graph for each."""
_PLAIN = (bool, int, float, np.integer, np.floating, np.bool_)


@dataclass(frozen=True)
class _Drawn:
    """A call that draws a number."""

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def draw(self) -> Any:
        return self.function(*self.args, **self.kwargs)


@dataclass(frozen=True)
class _Asked:
    """What was asked of the number that was drawn at a place, and the answer."""

    place: int
    compare: Callable[[Any, Any], Any]
    bound: Any
    answer: bool

    def holds(self, value: Any) -> bool:
        return bool(self.compare(value, self.bound)) is self.answer


@dataclass(frozen=True)
class Course:
    """What forward draws from the generators of Python, numpy and torch on one path, and asks of it, in order.

    Attributes:
        events: calls that draw, and questions.
        source: the user's line that draws first.
        from_torch: whether some of it is drawn from torch's generator.
    """

    events: Sequence[_Drawn | _Asked] = ()
    source: str | None = None
    from_torch: bool = False

    def __bool__(self) -> bool:
        return bool(self.events)

    def follow(self) -> bool:
        """Draw as forward does, up to the first answer that is another one; return whether there is none."""
        values: list[Any] = []
        for event in self.events:
            if isinstance(event, _Drawn):
                values.append(event.draw())
            elif not event.holds(values[event.place]):
                return False
        return True


class GeneratorStates:
    """The states that the generators of Python's, numpy's and torch's functions have now."""

    def __init__(self) -> None:
        self._states = random.getstate(), np.random.get_state(legacy=False), torch.get_rng_state()

    def restore(self) -> None:
        """Give them these states."""
        python, numpys, torchs = self._states
        random.setstate(python)
        np.random.set_state(numpys)
        torch.set_rng_state(torchs)

    def are(self, others: GeneratorStates) -> bool:
        """Whether they are the same states."""
        ours, theirs = (tuple(map(comparable, states._states)) for states in (self, others))
        return ours == theirs


def comparable(numbers: Any) -> Any:
    """Return the state of a generator as what can be compared with another one."""
    if isinstance(numbers, dict):
        return {key: comparable(value) for key, value in numbers.items()}
    if isinstance(numbers, torch.Tensor):
        numbers = numbers.numpy()
    return numbers.tobytes() if isinstance(numbers, np.ndarray) else numbers


class Chances:
    """Lets forward branch on numbers that it draws, and on nothing else of them, while it is traced.

    Args:
        from_torch: whether numbers of torch's generator are among them; if not, they are drawn in the graph.
    """

    def __init__(self, *, from_torch: bool) -> None:
        self._from_torch, self._thread = from_torch, threading.get_ident()
        self._events: list[_Drawn | _Asked] = []
        self._places = 0
        self._source: str | None = None
        self._start: GeneratorStates | None = None
        self._end: GeneratorStates | None = None

    @property
    def course(self) -> Course:
        """What was drawn and asked in the last run."""
        return Course(tuple(self._events), self._source, self._from_torch)

    def run(self, forward: Callable[[], T]) -> T:
        """Call a function that draws, from the same state of the generators each time."""
        if self._start is None:
            self._start = _aside(GeneratorStates)
        _aside(self._start.restore)
        self._events.clear()
        self._places = 0
        with substituted(list(self._substitutes())):
            result = forward()
        self._end = _aside(GeneratorStates)
        return result

    def account_for_all(self) -> bool:
        """Whether the course moves the generators as the last run did. Leaves them as they were before it."""
        if self._start is None or self._end is None:
            return False
        self._start.restore()
        same = self.course.follow() and GeneratorStates().are(self._end)
        self._start.restore()
        return same

    def _substitutes(self) -> Iterator[tuple[object, str, Any]]:
        for owner, functions in ((random, _PYTHONS), (np.random, _NUMPYS)):
            for name, stand_in in functions.items():
                yield owner, name, self._standing_in(getattr(owner, name), stand_in)
        for name in _TORCHS if self._from_torch else ():
            yield torch, name, self._standing_in(getattr(torch, name), _TORCHS[name])

    def _standing_in(self, own: Callable[..., Any], stand_in: _StandIn) -> Callable[..., Any]:
        def draws(*args: Any, **kwargs: Any) -> Any:
            frame = sys._getframe(1)
            mine = threading.get_ident() == self._thread and is_foreign(frame.f_code.co_filename)
            if not mine or str(frame.f_globals.get("__name__")).partition(".")[0] in ("sympy", "mpmath", "numpy"):
                return own(*args, **kwargs)
            value = stand_in(self, own, args, kwargs)
            return own(*args, **kwargs) if value is None else value

        return draws

    def draw(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> _Number:
        """Draw a number and note it."""
        self._source = self._source or current_line()
        event = _Drawn(function, args, kwargs)
        self._events.append(event)
        self._places += 1
        return _Number(self, self._places - 1, _aside(event.draw))

    def one_of(self, count: int, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Draw one of so many values, of which each has a graph of its own; None if they are too many."""
        return self.draw(function, *args, **kwargs).value() if 0 < count <= _OUTCOMES else None

    def ask(self, place: int, value: Any, compare: Callable[[Any, Any], Any], bound: Any) -> bool:
        """Note what is asked of a number, and return the answer."""
        answer = _aside(lambda: bool(compare(value, bound)))
        self._events.append(_Asked(place, compare, bound, answer))
        return answer


def _aside(function: Callable[[], T]) -> T:
    """Call a function where none of the modes hold that a trace runs under: they are a thread's own."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(function).result()


_StandIn = Callable[[Chances, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""Draws in place of a function called so; None where its result has to be known."""


class _Number:
    """A number that forward drew, of which it may ask how it compares with plain numbers."""

    __array_ufunc__ = None  # numpy's numbers leave the comparison to this one
    __slots__ = ("_chances", "_place", "_value")

    def __init__(self, chances: Chances, place: int, value: Any) -> None:
        self._chances, self._place, self._value = chances, place, value

    def value(self) -> Any:
        """The number itself: the graph is for no other one."""
        value = self._value.item() if isinstance(self._value, torch.Tensor) else self._value
        self._chances.ask(self._place, self._value, operator.eq, value)
        return value

    def _asked(self, compare: Callable[[Any, Any], Any], bound: Any) -> bool:
        if not isinstance(bound, _PLAIN):
            self._refuse()
        return self._chances.ask(self._place, self._value, compare, bound)

    def __lt__(self, bound: Any) -> bool:
        return self._asked(operator.lt, bound)

    def __le__(self, bound: Any) -> bool:
        return self._asked(operator.le, bound)

    def __gt__(self, bound: Any) -> bool:
        return self._asked(operator.gt, bound)

    def __ge__(self, bound: Any) -> bool:
        return self._asked(operator.ge, bound)

    def __eq__(self, bound: object) -> bool:
        return self._asked(operator.eq, bound)

    def __ne__(self, bound: object) -> bool:
        return self._asked(operator.ne, bound)

    def __bool__(self) -> bool:
        return self._asked(operator.ne, 0)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise CaptureError(
            "forward computes with a random number", source=current_line(),
            reason="the graph would keep the number of its capture in all steps",
        )  # fmt: skip

    # Without them, a text or a key would be made of where the object lies in memory.
    __hash__ = __str__ = __repr__ = __format__ = _refuse


class _Element(_Number):
    """A random tensor of one element."""

    __slots__ = ()

    def item(self) -> _Number | int:
        return self._number()

    def _number(self) -> _Number | int:
        return _Number(self._chances, self._place, self._value)

    def __getitem__(self, index: Any) -> _Element:
        if index not in (0, -1) or self._value.shape != (1,):
            self._refuse()
        return self


class _WholeElement(_Element):
    """A random tensor of one whole number, of which there are few."""

    __slots__ = ()

    def _number(self) -> int:
        whole: int = self.value()
        return whole

    __int__ = __index__ = _number


def _uniform(chances: Chances, own: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Numbers of an interval, or of a distribution on a line: only if it is one number of plain arguments."""
    plain = all(isinstance(value, _PLAIN) for value in (*args, *kwargs.values()))
    return chances.draw(own, *args, **kwargs) if plain else None


def _no_size(chances: Chances, own: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The same for functions that take a size, and nothing else, in their place."""
    return None if args or kwargs else chances.draw(own)


def _scalar(count: int) -> _StandIn:
    """The same for functions that take a size behind so many arguments."""

    def stand_in(chances: Chances, own: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return None if len(args) > count or "size" in kwargs else _uniform(chances, own, args, kwargs)

    return stand_in


def _whole(count: Callable[..., int]) -> _StandIn:
    """Whole numbers: of how many, tells a function of the arguments."""

    def stand_in(chances: Chances, own: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not all(type(value) is int or isinstance(value, np.integer) for value in (*args, *kwargs.values())):
            return None
        return chances.one_of(count(*args, **kwargs), own, *args, **kwargs)

    return stand_in


def _choice(chances: Chances, own: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """One of a sequence: the graph is for its place."""
    (sequence,) = args or kwargs.values()
    place = chances.one_of(len(sequence), own, range(len(sequence)))
    return None if place is None else sequence[place]


def _numpys_choice(chances: Chances, own: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    bound = inspect.signature(lambda a, size=None, replace=True, p=None: None).bind(*args, **kwargs).arguments
    if bound.get("size") is not None:
        return None
    options = bound["a"] if isinstance(bound["a"], int) else np.asarray(bound["a"])
    count = options if isinstance(options, int) else len(options)
    place = chances.one_of(count, own, count, p=bound.get("p"))
    return place if place is None or isinstance(options, int) else options[place]


def _binomial(chances: Chances, own: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if len(args) != 2 or kwargs or not isinstance(args[0], int) or not isinstance(args[1], _PLAIN):
        return None
    return chances.one_of(args[0] + 1, own, *args)


def _is_one(sizes: Iterable[Any]) -> bool:
    """Whether the size of a tensor is that of one element."""
    flat = [size for sizes in sizes for size in (sizes if isinstance(sizes, list | tuple) else [sizes])]
    return all(type(size) is int and size == 1 for size in flat)


def _on_cpu(kwargs: Mapping[str, Any]) -> bool:
    device = torch.device(kwargs.get("device") or torch.get_default_device())
    return device.type == "cpu" and kwargs.keys() <= {"device", "dtype"}


def _rand(chances: Chances, own: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not args or not _is_one(args) or not _on_cpu(kwargs):
        return None
    drawn = chances.draw(own, *args, **kwargs)
    return _Element(chances, drawn._place, drawn._value)


def _randint(chances: Chances, own: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    *bounds, size = args or (None,)
    whole = bounds and all(type(bound) is int for bound in bounds) and isinstance(size, list | tuple)
    if not whole or not _is_one([size]) or not _on_cpu(kwargs):
        return None
    low, high = (0, *bounds)[-2:]
    if not 0 < high - low <= _OUTCOMES:
        return None
    drawn = chances.draw(own, *args, **kwargs)
    return _WholeElement(chances, drawn._place, drawn._value)


def _span(low: int, high: int | None = None) -> int:
    return low if high is None else high - low


_PYTHONS: Mapping[str, _StandIn] = {
    **dict.fromkeys(("random", "uniform", "gauss", "normalvariate", "betavariate", "triangular"), _uniform),
    "randint": _whole(lambda a, b: b - a + 1),
    "randrange": _whole(lambda *args, **kwargs: len(range(*args)) if not kwargs else 0),
    "getrandbits": _whole(lambda k: 2**k if k < _OUTCOMES else 0),
    "choice": _choice,
}
"""Functions of the module `random`."""
_NUMPYS: Mapping[str, _StandIn] = {
    **dict.fromkeys(("rand", "randn", "random", "random_sample"), _no_size),
    **dict.fromkeys(("uniform", "normal", "beta"), _scalar(2)),
    "randint": _whole(_span),
    "choice": _numpys_choice,
    "binomial": _binomial,
}
"""Functions of the module `numpy.random`."""
_TORCHS: Mapping[str, _StandIn] = {"rand": _rand, "randint": _randint}
