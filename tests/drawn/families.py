"""Families of a kind of case, each a function that registers itself by decorator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

__all__ = ["Families"]

Function = TypeVar("Function", bound=Callable[..., Any])


class Families:
    """Functions by name, and how often each has its turn.

    call = Families()

    @call
    def padding(draw): ...

    @call.share(2)
    def arithmetic(draw): ...
    """

    def __init__(self) -> None:
        self._functions: dict[str, Callable[..., Any]] = {}
        self._order: list[str] = []

    def __call__(self, function: Function) -> Function:
        """Register a family that has one turn in a round."""
        return self.share(1)(function)

    def share(self, turns: int) -> Callable[[Function], Function]:
        """Register a family that has so many turns in a round."""

        def register(function: Function) -> Function:
            name = function.__name__
            assert name not in self._functions, f"two families are called {name}"
            self._functions[name] = function
            self._order.extend([name] * turns)
            return function

        return register

    def __getitem__(self, name: str) -> Callable[..., Any]:
        return self._functions[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._functions)

    def of(self, number: int) -> str:
        """The family whose turn it is."""
        return self._order[number % len(self._order)]

    def without(self, *names: str) -> Families:
        """All families but these."""
        rest = Families()
        rest._functions = {name: function for name, function in self._functions.items() if name not in names}
        rest._order = [name for name in self._order if name not in names]
        return rest

    @property
    def turns(self) -> list[str]:
        """A round: names, as often as each has its turn."""
        return self._order
