"""Random numbers that Python draws in each call: TorchDynamo would have those of the call that it traces for all."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ontrain.capture import reachable

__all__ = ["generators_of", "untraced"]


class _UntracedGenerator(random.Random):
    """A generator whose methods TorchDynamo leaves to Python."""


def _disabled(name: str) -> Callable[..., Any]:
    def call(generator: random.Random, *args: Any, **kwargs: Any) -> Any:
        return getattr(random.Random, name)(generator, *args, **kwargs)

    return torch.compiler.disable(call)  # type: ignore[no-any-return]


for _name in dir(random.Random):
    if not _name.startswith("_") and callable(getattr(random.Random, _name)):
        setattr(_UntracedGenerator, _name, _disabled(_name))


def generators_of(module: nn.Module) -> list[random.Random]:
    """Return the generators of Python's that a module's forward can come to, but for that of `random`'s functions."""
    own = vars(random)["_inst"]
    kinds = (random.Random, _UntracedGenerator)  # the latter within a call in another thread
    return [each for each in reachable([module], (random.Random,)) if type(each) in kinds and each is not own]


_LOCK = threading.Lock()
_USERS: Counter[int] = Counter()
"""How many calls at this moment have each generator untraced, by its id."""


@contextmanager
def untraced(generators: Sequence[random.Random]) -> Iterator[None]:
    """Have generators draw in each call, for as long as this lasts. Their states and their methods' results stay.

    Calls in several threads may share a generator: the last of them gives it its class back.
    """
    with _LOCK:
        for generator in generators:
            _USERS[id(generator)] += 1
            generator.__class__ = _UntracedGenerator
    try:
        yield
    finally:
        with _LOCK:
            for generator in generators:
                _USERS[id(generator)] -= 1
                if not _USERS[id(generator)]:
                    del _USERS[id(generator)]
                    generator.__class__ = random.Random
