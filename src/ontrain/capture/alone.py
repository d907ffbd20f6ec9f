"""What is set for the whole process while a module is captured."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from torch import nn

from ontrain.capture.global_hooks import hooks_of_parts
from ontrain.internals import available, without_dispatch_modes
from ontrain.interrupts import interrupts_wait
from ontrain.locks import Lock

__all__ = ["alone"]

_one_trace = Lock(holds_forks=True)
"""Held while a module is captured: torch.export replaces functions of torch's own. Two traces would mix, and a child
would never get those functions back."""
_FRAMES = 3
"""How many times as many frames a trace may take as forward itself: torch.export stands between two modules."""


@contextmanager
def alone(module: nn.Module, kind: str) -> Iterator[None]:
    """Let one module be traced at a time, without modes and hooks that are not its own, as deep as it is nested.

    Args:
        module: what is traced.
        kind: what an interrupt says that it waits for.
    """
    waits = interrupts_wait(f"{kind} is captured")
    with _one_trace, waits, _deep_recursion(), _no_compilation(), without_dispatch_modes(), hooks_of_parts(module):
        yield


@contextmanager
def _deep_recursion() -> Iterator[None]:
    """Let modules in modules be traced as deep as eager PyTorch runs them."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(_FRAMES * limit)
    try:
        yield
    finally:
        if sys.getrecursionlimit() == _FRAMES * limit:
            sys.setrecursionlimit(limit)


def _no_compilation() -> AbstractContextManager[Any]:
    """Return a context in which TorchDynamo compiles nothing in other threads: it would see what a trace replaces."""
    if "torch._dynamo.convert_frame" not in sys.modules:
        return nullcontext()
    lock: AbstractContextManager[Any] | None = available("torch._dynamo.convert_frame.compile_lock")
    return nullcontext() if lock is None else lock
