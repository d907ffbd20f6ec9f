"""Attributes of objects whose classes name them in `__slots__`, as `dataclass(slots=True)` and attrs do."""

from __future__ import annotations

import sys
from collections.abc import Iterator, MutableMapping
from dataclasses import is_dataclass
from types import MemberDescriptorType
from typing import Any
from weakref import WeakKeyDictionary

from ontrain.capture.source import is_users

__all__ = ["Slots", "slots_of"]


_KNOWN: WeakKeyDictionary[type, tuple[str, ...]] = WeakKeyDictionary()


def slots_of(kind: type) -> tuple[str, ...]:
    """Return the attributes that a class has in slots: of the user's classes, dataclasses and those of attrs."""
    slots = _KNOWN.get(kind)
    if slots is None:
        bases = [base for base in kind.__mro__ if "__slots__" in vars(base) and _is_open(base)]
        members = [item for base in bases for item in vars(base).items()]
        slots = _KNOWN[kind] = tuple([name for name, value in members if type(value) is MemberDescriptorType])
    return slots


def _is_open(kind: type) -> bool:
    if is_dataclass(kind) or "__attrs_attrs__" in vars(kind):
        return True
    return is_users(getattr(sys.modules.get(kind.__module__), "__file__", None))


class Slots(MutableMapping[str, Any]):
    """The attributes of an object in its slots and, if it has one, in its dictionary, as they are at each look.

    Attributes:
        owner: the object.
    """

    def __init__(self, owner: Any) -> None:
        self.owner, self._names = owner, slots_of(type(owner))
        self._others: dict[str, Any] = getattr(owner, "__dict__", {})

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            return self._others[name]
        try:
            return object.__getattribute__(self.owner, name)
        except AttributeError:  # nothing was put there yet
            raise KeyError(name) from None

    def __setitem__(self, name: str, value: Any) -> None:
        if name in self._names:
            object.__setattr__(self.owner, name, value)
        else:
            self._others[name] = value

    def __delitem__(self, name: str) -> None:
        if name in self._names:
            object.__delattr__(self.owner, name)
        else:
            del self._others[name]

    def __iter__(self) -> Iterator[str]:
        yield from (name for name in (*self._names, *self._others) if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return name in self._others if name not in self._names else hasattr(self.owner, str(name))
