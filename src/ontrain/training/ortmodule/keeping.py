"""Buffers that one call leaves for the next, through which eager PyTorch differentiates, too.

    self.hidden = torch.tanh(self.layer(x) + self.hidden)

A graph carries the values of buffers over, and no gradients through them.
"""

from __future__ import annotations

import weakref

from ontrain.errors import CaptureError, OntrainError
from ontrain.internals import version_of
from ontrain.training.ortmodule.entry import Entry
from ontrain.training.ortmodule.function import Call
from ontrain.training.ortmodule.left import STATE

__all__ = ["Carried", "refuse_carried"]


class Carried:
    """The calls whose gradients wait in buffers, which the next call would lead on."""

    def __init__(self) -> None:
        self._calls: dict[int, tuple[weakref.ref[Call], int]] = {}

    def check(self, entry: Entry) -> None:
        """Refuse a call that reads a buffer as a call left it whose backward is still to come.

        Raises:
            OntrainError: eager PyTorch would differentiate through both. No fallback takes it: the gradient is lost.
        """
        for name, buffer in entry.carried.items():
            held, version = self._calls.get(id(buffer), (None, 0))
            call = held() if held is not None else None
            if call is not None and not call.differentiated and version == version_of(buffer):
                raise OntrainError(
                    f"a call reads buffer {name!r}, which the call before left with a gradient",
                    reason="eager PyTorch's backward leads through both calls; here each has a graph of its own",
                    way_out=f"{STATE}; or loop over the steps within forward; or, if the gradient is to end there, "
                    f"keep {name}.detach() in forward, or call backward() before the next call",
                )

    def note(self, entry: Entry, call: Call) -> None:
        """Note that a call has left gradients in buffers."""
        for buffer in entry.carried.values():
            self._calls[id(buffer)] = weakref.ref(call), version_of(buffer)


def refuse_carried(entry: Entry) -> None:
    """Refuse a module that leaves tensors in objects for its next call, or gradients in buffers.

    Raises:
        CaptureError: it does.
    """
    for repetition in entry.repeated:
        if repetition.left is not None:
            raise repetition.left.error()
    for name in entry.carried:
        raise CaptureError(
            f"forward leaves buffer {name!r} with a gradient, and reads it in the next call",
            reason="eager PyTorch's backward leads through both calls; a graph ends with its call",
        )
