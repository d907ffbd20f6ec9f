"""What stands in the place of a tensor that eager PyTorch would have left for the next call: it refuses to be read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ontrain.capture import Write
from ontrain.capture.ways_out import BROKEN
from ontrain.errors import CaptureError, OntrainError

__all__ = ["STATE", "Left", "check_left"]

STATE = "pass it as an argument and return it from forward, which has gradients as in eager PyTorch"


class Left:
    """The place of a tensor that a graph does not carry over.

    Args:
        write: of the entry that forward writes and its next call reads.
    """

    def __init__(self, write: Write) -> None:
        self._place, self._name = str(write), write.name

    def error(self) -> CaptureError:
        """Return the refusal of a call that would read it."""
        buffer = self._name if isinstance(self._name, str) and self._name.isidentifier() else "state"
        return CaptureError(
            f"forward keeps a tensor from call to call in {self._place}",
            reason="a graph carries values over in buffers only",
            way_out=f"register it as a buffer, self.register_buffer({buffer!r}, tensor), or set it anew before "
            f"each call; or, for gradients through several calls, {STATE}; or {BROKEN}",
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self.error()


def check_left(carried: Sequence[Write]) -> None:
    """Refuse a call that would read what the call before left.

    Raises:
        OntrainError: an entry was not set anew. No fallback takes it, because the tensor is lost.
    """
    for write in carried:
        left = write.table.value(write.name)
        if isinstance(left, Left):
            error = left.error()
            raise OntrainError(error.problem, reason=error.reason, way_out=error.way_out)
