"""Hooks that forward registers once: after a capture they stand where forward has put them."""

from __future__ import annotations

from collections.abc import Sequence

from ontrain.capture import InstalledHook

__all__ = ["InstalledHooks"]


class InstalledHooks:
    """The hooks that captures of a module have registered.

    Attributes:
        all: every one; they are a part of forward.
    """

    def __init__(self) -> None:
        self.all: list[InstalledHook] = []
        self._new: list[InstalledHook] = []  # of the capture whose first call has not returned yet

    def put(self, hooks: Sequence[InstalledHook]) -> None:
        """Register the hooks of a capture again: its trace took them back."""
        for hook in hooks:
            hook.put()
        self._new = list(hooks)
        self.all += hooks

    def keep(self) -> None:
        """Leave the new ones where they are: a call has returned."""
        self._new.clear()

    def take_back(self) -> None:
        """Have the next capture register hooks itself: the attribute that says they are there was not written."""
        for hook in self._new:
            hook.take_back()
        self._new.clear()
