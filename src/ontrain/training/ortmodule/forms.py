"""Buffers whose shapes follow from the batch: a state of neurons that each call begins anew.

    batch of 2 rows   →   captured with buffers for 2 rows
    batch of 3 rows   →   captured with buffers for 3 rows; the first captures are set aside
    batch of 2 rows   →   the first buffers and captures again

Which captures answer a call follows from the forms of the buffers: their sizes, dtypes and devices.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ontrain.internals import of
from ontrain.training.ortmodule.call_cache import CallCache
from ontrain.training.ortmodule.entry import Entry
from ontrain.training.ortmodule.settling import settled

__all__ = ["Buffers", "FormerState", "Forms"]

_FORMS = 8
"""How many forms of the buffers are kept, those that were left last."""

_Form = tuple[torch.Size, torch.dtype, torch.device] | None
Buffers = Mapping[tuple[int, str], torch.Tensor | None]
"""The buffers of a module, by the number of the submodule and the name there."""


@dataclass
class FormerState:
    """What was captured of a module when its buffers had other forms.

    Attributes:
        cache: the captures.
        buffers: those of the module as it was.
        left: of the module as it was left for this one.
        sources: forms of buffers from which forward was seen to make these.
    """

    cache: CallCache
    buffers: Buffers
    left: Buffers = field(default_factory=dict)
    sources: set[Hashable] = field(default_factory=set)


class Forms:
    """The forms that the buffers of a module had, and what was captured with each.

    Args:
        module: whose buffers are exchanged.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._former: list[FormerState] = []

    def buffers(self) -> Buffers:
        """Return the buffers as they are."""
        return {(at, name): buffer for at, own in self._tables() for name, buffer in own.items()}

    def add(self, former: FormerState) -> None:
        """Keep what was captured with buffers that another form follows."""
        self._former = [*self._former, former][-_FORMS:]

    def clear(self) -> None:
        """Forget all of them."""
        self._former = []

    def back(
        self, structure: Hashable, answers: Callable[[Sequence[Entry]], bool], args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> FormerState | None:  # fmt: skip
        """Give the module the buffers of a former state that has captures for a call, and return that state.

        The first time that one form follows another, copies of the module run the call: forward makes such buffers
        itself, and returns the same with them.

        Args:
            structure: of the call's arguments.
            answers: whether captures are for the call.
            args: its positional arguments.
            kwargs: its keyword arguments.

        Returns:
            the state, with the buffers that the module had until now as `left`; None if there is none.
        """
        now = self.buffers()
        for former in reversed(self._former):
            if former.buffers.keys() != now.keys() or not answers(former.cache.alike(structure)):
                continue
            source = tuple(map(_form, now.values()))
            undo = None
            if source not in former.sources:
                undo = settled(self._module, args, kwargs)
                if undo is None:
                    return None
                _take_over(now, self.buffers(), former.buffers)
            begun = self.buffers()
            others = {place: buffer for place, buffer in former.buffers.items() if _form(now[place]) != _form(buffer)}
            self._put(others)
            if not former.cache.watch.changed():
                former.sources.add(source)
                former.left = now
                self._former = [other for other in self._former if other is not former]
                return former
            self._put(begun)
            if undo is not None:
                undo()
                self._put(now)
        return None

    def _put(self, buffers: Buffers) -> None:
        for at, own in self._tables():
            for name, buffer in own.items():
                if buffers.get((at, name), buffer) is not buffer:
                    own[name] = buffers[at, name]

    def _tables(self) -> list[tuple[int, dict[str, torch.Tensor | None]]]:
        return [(at, of("torch.nn.Module._buffers", part)) for at, part in enumerate(self._module.modules())]


@torch.no_grad()
def _take_over(now: Buffers, formed: Buffers, former: Buffers) -> None:
    """Write what forward has made of the present buffers into those that had this form before."""
    for place, buffer in former.items():
        value = formed[place]
        if buffer is not None and value is not None and _form(now[place]) != _form(buffer) == _form(value):
            buffer.copy_(value)


def _form(buffer: torch.Tensor | None) -> _Form:
    return None if buffer is None else (buffer.shape, buffer.dtype, buffer.device)
