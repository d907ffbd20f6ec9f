"""Forwards that set torch's generator: what they draw next is the same in each call, or the same as they drew before.

    state = torch.get_rng_state()
    y = dropout(x)
    torch.set_rng_state(state)     →  a mark in the trace: what is drawn from here on is refused
    z = dropout(x)                    if it is drawn at all: a graph's draws are all of their own

Layers that compute their forward again in their backward do so, with or without dropout.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from ontrain.capture.source import is_foreign

__all__ = ["reseedings"]


def reseedings(elsewhere: Callable[[], bool]) -> dict[str, Callable[[Any], Any]]:
    """Return what to make of torch's own objects, by name, during one trace.

    Args:
        elsewhere: whether the calling thread is another than the one that traces.
    """
    return {"torch.random.default_generator": lambda own: _Generator(own, elsewhere)}


class _Generator:
    """torch's generator as its functions see it, which marks in the trace where it is set.

    `torch.random.fork_rng` sets it, too: to the state in which it had found it.
    """

    def __init__(self, own: torch.Generator, elsewhere: Callable[[], bool]) -> None:
        self._own, self._elsewhere = own, elsewhere
        self._set = False
        self._forks = dict[FrameType, bool]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def get_state(self) -> torch.Tensor:
        fork = _fork(sys._getframe(1))
        if fork is not None and not self._elsewhere():
            self._forks[fork] = self._set
        return self._own.get_state()

    def set_state(self, state: torch.Tensor) -> Any:
        fork = _fork(sys._getframe(1))
        self._mark(True if fork is None else self._forks.pop(fork, True))
        return self._own.set_state(state)

    def manual_seed(self, seed: int) -> torch.Generator:
        self._mark(True)
        return self._own.manual_seed(seed)

    def seed(self) -> int:
        self._mark(False)
        return self._own.seed()

    def _mark(self, is_set: bool) -> None:
        """Mark what a forward does; torch keeps the state of its generator while it traces branches and loops."""
        if self._elsewhere() or is_set == self._set or not is_foreign(_caller(sys._getframe(2)).f_code.co_filename):
            return
        self._set = is_set
        torch.ops.ontrain.reseed(is_set)


def _fork(frame: FrameType) -> FrameType | None:
    """The frame of `torch.random.fork_rng` that calls, if it does."""
    caller = frame.f_back
    return caller if caller is not None and caller.f_code.co_name == "fork_rng" else None


def _caller(frame: FrameType) -> FrameType:
    """The innermost frame that is neither of torch's functions for its generator nor of what is put around them."""
    while frame.f_back is not None and frame.f_code.co_filename.endswith(_AROUND):
        frame = frame.f_back
    return frame


_AROUND = tuple(
    os.path.join("", *name.split("/"))
    for name in ("torch/random.py", "torch/_compile.py", "torch/_dynamo/eval_frame.py", "contextlib.py")
)


@torch.library.custom_op("ontrain::reseed", mutates_args=())
def _reseed(is_set: bool) -> torch.Tensor:
    return torch.empty(0, dtype=torch.float32, device="cpu")


@_reseed.register_fake
def _(is_set: bool) -> torch.Tensor:
    return torch.empty(0, dtype=torch.float32, device="cpu")


# Nothing reads it; what stands behind it matters.
torch.fx.node.has_side_effect(torch.ops.ontrain.reseed.default)
