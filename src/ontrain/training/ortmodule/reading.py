"""Buffers whose values the backward of a call reads, and that another module's call may write to in between.

    scores = first(x)         # reads a queue of keys, and its backward does, too
    loss = second(scores)     # writes the latest keys to the queue

What forward reads through `queue.clone()` is as it was then in eager PyTorch. So whoever writes to a buffer keeps its
value for the backwards that are still to come.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch

from ontrain.errors import InputError
from ontrain.internals import version_of
from ontrain.locks import Lock

__all__ = ["Reading", "written", "writing"]


class Reading:
    """The buffers that the backward of one call reads, by name, and their values where they were written to.

    Args:
        buffers: those that backward reads.
        cloned: names of those that forward itself copies first, so that the program may write to them.
    """

    def __init__(self, buffers: Mapping[str, torch.Tensor], cloned: Collection[str] = ()) -> None:
        self._buffers = {name: buffer for name, buffer in buffers.items() if not buffer.is_inference()}
        self._versions = {name: version_of(buffer) for name, buffer in self._buffers.items()}
        self._kept = {name: tensor.detach().clone() for name, tensor in self._buffers.items() if name in cloned}
        with _lock:
            for buffer in self._buffers.values():
                readers = [ref for ref in _readers.get(_place(buffer), ()) if ref() is not None]
                _readers[_place(buffer)] = [*readers, weakref.ref(self)]

    def keep(self, place: int) -> None:
        """Keep the values of the buffers that lie there, unless they were changed before."""
        for name, buffer in self._buffers.items():
            if _place(buffer) == place and name not in self._kept and version_of(buffer) == self._versions[name]:
                self._kept[name] = buffer.detach().clone()

    @contextmanager
    def as_they_were(self) -> Iterator[None]:
        """Give the buffers the values that forward read, for as long as backward runs.

        Raises:
            InputError: the program has changed one in place since.
        """
        for name, buffer in self._buffers.items():
            if name not in self._kept and version_of(buffer) != self._versions[name]:
                raise InputError(
                    f"buffer {name!r} was modified by an inplace operation between forward and backward",
                    reason="backward reads it as it was in forward",
                    way_out="change it after backward, or give the module another tensor: module.buffer = value",
                )
        now = {name: self._buffers[name].detach().clone() for name in self._kept}
        try:
            self._set(self._kept)
            yield
        finally:
            self._set(now)

    def _set(self, values: Mapping[str, torch.Tensor]) -> None:
        for name, value in values.items():
            self._buffers[name].data.copy_(value)  # as if it had never been changed: without another version


_readers: dict[int, list[weakref.ref[Reading]]] = {}
"""Who still reads buffers, by the place of their memory."""
_lock = Lock()


def writing(buffers: Iterable[torch.Tensor]) -> None:
    """Keep the values of buffers that a graph is about to write to, for all who still read them."""
    if not _readers:
        return
    with _lock:
        for place in {_place(buffer) for buffer in buffers}:
            for ref in _readers.pop(place, ()):
                reading = ref()
                if reading is not None:
                    reading.keep(place)


def written(buffers: Iterable[torch.Tensor]) -> None:
    """Have autograd know that a graph has written to buffers."""
    torch.autograd.graph.increment_version([buffer for buffer in buffers if not buffer.is_inference()])


def _place(buffer: torch.Tensor) -> int:
    return buffer.untyped_storage().data_ptr()
