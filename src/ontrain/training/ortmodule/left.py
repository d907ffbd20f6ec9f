"""What a call leaves in objects, and eager PyTorch's next call would read: the next one is refused."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ontrain.capture import ALL, MISSING, MORE, Write, flatten
from ontrain.capture.ways_out import BROKEN
from ontrain.errors import CaptureError, OntrainError

__all__ = ["STATE", "Before", "Left", "check_left"]

STATE = "pass it as an argument and return it from forward, which has gradients as in eager PyTorch"


class Left:
    """An entry that forward writes and its next call reads, and what the last call has left there.

    Args:
        write: of the entry.
    """

    def __init__(self, write: Write) -> None:
        self._write, self._value = write, MISSING

    def leave(self, value: Any) -> None:
        """Give the entry the value that a call has computed, for whoever reads it before the next call."""
        self._write.table.put(self._write.name, value)
        self._value = value

    @property
    def is_there(self) -> bool:
        """Whether the entry still has the value that a call has left."""
        return self._value is not MISSING and self._write.table.value(self._write.name) is self._value

    def error(self, source: str | None = None) -> CaptureError:
        """Return the refusal of a call that would read it.

        Args:
            source: the line that names the entry.
        """
        if self._write.name in (ALL, MORE) and not self._write.holds_tensors:
            return CaptureError(
                f"forward computes with what its earlier calls have added to {self._write}",
                source=source,
                reason="a graph is for one such list, and the next call would have a longer one",
                way_out=f"keep what it computes of the items, such as their number or sum, in an attribute or a "
                f"buffer; or {BROKEN}",
            )
        if self._write.is_bare:
            return CaptureError(
                f"forward computes with an object that the call before has left in {self._write}",
                reason="a graph is for one such object; of what a call leaves it hands over tensors, numbers and texts",
                way_out=f"keep the numbers of the object there, or in a buffer; or {BROKEN}",
            )
        name = self._write.name
        buffer = name if isinstance(name, str) and name.isidentifier() else "state"
        return CaptureError(
            f"forward keeps a tensor from call to call in {self._write}",
            source=source,
            reason="a graph hands over buffers, and for ORTModule tensors in attributes, lists of one length and "
            "dictionaries, but nothing else that holds tensors",
            way_out=f"register it as a buffer, self.register_buffer({buffer!r}, tensor), or set it anew before "
            f"each call; or, for gradients through several calls, {STATE}; or {BROKEN}",
        )


class Before:
    """What an entry has before a call that reads it: the graph of the call holds its tensors.

    Args:
        write: of the entry, as it is while the call is captured.
    """

    def __init__(self, write: Write) -> None:
        self._write, (tensors, self._spec) = write, flatten(self._value_of(write))
        self._tensors = [tensor.detach().clone() for tensor in tensors]

    def changed(self) -> bool:
        """Whether the entry has other tensors now, or something else."""
        tensors, spec = flatten(self._value_of(self._write))
        return spec != self._spec or not all(map(_is_equal, tensors, self._tensors))

    @staticmethod
    def _value_of(write: Write) -> Any:
        value = write.table.value(write.name)
        return None if value is MISSING else value


def _is_equal(tensor: torch.Tensor, before: torch.Tensor) -> bool:
    """Whether a graph that holds one tensor holds for another one, through which no gradient flows."""
    alike = (tensor.shape, tensor.dtype, tensor.device) == (before.shape, before.dtype, before.device)
    return alike and not tensor.requires_grad and torch.equal(tensor, before)


def check_left(entries: Iterable[Left]) -> None:
    """Refuse a call that would read what the call before left.

    Raises:
        OntrainError: an entry was not set anew. No fallback takes it, because the graph holds what was there before.
    """
    for left in entries:
        if left.is_there:
            error = left.error()
            raise OntrainError(error.problem, reason=error.reason, way_out=error.way_out)
