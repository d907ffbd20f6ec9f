"""A method that is put in the place of an ORTModule's forward, as TRL's trainers put one there."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from types import MethodType
from typing import Any

from torch import nn

__all__ = ["told_of"]


def told_of(forward: object, wrapper: nn.Module, runs: Callable[[], int]) -> object:
    """Return a forward that says so where a call of it in training mode has run no graph.

    Args:
        forward: what is put there. A function around the former forward, such as autocast's, is returned as it is.
        wrapper: the ORTModule.
        runs: how often it has run its own forward.

    Warns:
        UserWarning: once, at a call.
    """
    if not isinstance(forward, MethodType) or forward.__self__ is not wrapper:
        return forward
    told = False

    @functools.wraps(forward)
    def run(*args: Any, **kwargs: Any) -> Any:
        nonlocal told
        before = runs()
        result = forward(*args, **kwargs)
        if not told and wrapper.training and runs() == before:
            told = True
            warnings.warn(
                f"{_named(forward.__func__)} is in the place of this ORTModule's forward and has not called it: what "
                "it calls of the module runs as plain PyTorch, and not as a graph",
                stacklevel=2,
            )
        return result

    return run


def _named(function: Any) -> str:
    """The name and place of a function itself: one that `functools.wraps` has dressed says another's."""
    code = getattr(function, "__code__", None)
    if code is None:
        return repr(function)
    return f"{code.co_name} ({code.co_filename}:{code.co_firstlineno})"
