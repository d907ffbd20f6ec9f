"""A module that is captured anew in call after call: right, and slower than eager PyTorch by far."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

__all__ = ["Recaptures"]

_MANY = 8


class Recaptures:
    """Tells once of a module each of whose latest calls made a capture.

    Args:
        kind: the class of the module.
    """

    def __init__(self, kind: str) -> None:
        self._kind, self._captures, self._row = kind, 0, 0
        self._causes: Sequence[str] = ()

    @property
    def are_many(self) -> bool:
        """Whether one more capture is told of: the time to look for causes."""
        return self._row == _MANY - 1

    def explain(self, causes: Sequence[str]) -> None:
        """Note in words what has changed since the call before."""
        self._causes = causes

    def count(self, captures: int, seconds: Mapping[str, float]) -> None:
        """Count a call.

        Args:
            captures: of the module so far.
            seconds: that each phase of the capture in use took.

        Warns:
            UserWarning: it is the eighth call in a row that made one.
        """
        self._row = self._row + 1 if captures > self._captures else 0
        self._captures = captures
        if self._row == _MANY:
            cause = f": {', '.join(dict.fromkeys(self._causes))} changes from call to call" if self._causes else ""
            last = sum(seconds.values())
            warnings.warn(
                f"each of the last {_MANY} calls of {self._kind} was captured anew, the last one in {last:.1f} s"
                f"{cause}. Keep what changes in tensors: arguments of forward, or buffers; or "
                'ORTModule(model, breaks="allow") leaves it to PyTorch',
                stacklevel=8,
            )
