"""A piece for all modules of the program that share it."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from ontrain.training.compiled.piece import Inputs, Piece
from ontrain.training.ortmodule import ORTModule

__all__ = ["SharedPiece"]

_MODULES = 256
"""Modules of the program for which a piece keeps graphs; the oldest goes first."""
_REPLACED = 2
"""Times that a buffer may be replaced before it is an argument of the piece."""


class SharedPiece:
    """Runs a piece with the parameters and buffers of whichever module calls it.

    TorchDynamo runs one graph for all modules whose calls look alike, such as the layers of a network. Each has an
    `ORTModule` of its own here. A buffer that the program replaces by another tensor again and again is handed over at
    each call.

    Args:
        run: the graph.
        inputs: where its inputs come from.
        wrap: makes the `ORTModule` of a piece.
        values: the graph's inputs at the call that was traced.
    """

    def __init__(
        self, run: Callable[..., Any], inputs: Inputs, wrap: Callable[[Piece], ORTModule], values: Sequence[Any]
    ) -> None:
        self._run, self._wrap = run, wrap
        self._parameters = [at for at in inputs.residents if isinstance(values[at], nn.Parameter)]
        self._replaced: Counter[int] = Counter()
        # By identity: a piece keeps what it has registered, so that no other object takes its place.
        self._models: OrderedDict[tuple[int, ...], ORTModule] = OrderedDict()
        self._take(inputs)
        self._add(values)

    def __call__(self, *values: Any) -> Any:
        """Return what the graph returns for its inputs."""
        model = self._models.get(self._key(values))
        if model is None:
            self._follow(values)
            model = self._add(values)
        return model(*[take(values) for take in self._arguments])

    def _take(self, inputs: Inputs) -> None:
        self._inputs = inputs
        self._arguments = list(inputs.arguments.values())
        others = [at for at in inputs.residents if at not in self._parameters]
        self._places = [*self._parameters, *others]

    def _key(self, values: Sequence[Any]) -> tuple[int, ...]:
        return tuple([id(values[at]) for at in self._places])

    def _add(self, values: Sequence[Any]) -> ORTModule:
        model = self._models[self._key(values)] = self._wrap(Piece(self._run, self._inputs, values))
        if len(self._models) > _MODULES:
            self._models.popitem(last=False)
        return model

    def _follow(self, values: Sequence[Any]) -> None:
        """Where only buffers are new, let them take the place of those before, or become arguments."""
        key, count = self._key(values), len(self._parameters)
        before = next((known for known in self._models if known[:count] == key[:count]), None)
        if before is None:
            return
        engine = self._models.pop(before)._engine
        # An argument is not written to: statistics stay buffers, and each replacement makes a graph anew.
        written = {id(tensor) for entry in (engine.entries if engine else ()) for tensor in entry.buffers.values()}
        pairs = zip(self._places, before, key, strict=True)
        self._replaced.update(at for at, old, now in pairs if old != now and old not in written)
        often = [at for at in self._inputs.residents if self._replaced[at] > _REPLACED]
        if often:
            self._models.clear()
            self._take(self._inputs.with_arguments(often))
