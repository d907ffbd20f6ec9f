"""Objects beside modules that a forward reads: which ones a capture depends on, and what of a value is compared."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import sys
import types
from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import nn

from ontrain.capture import ALL, MORE, Slots, is_users, slots_of
from ontrain.internals import version_of

__all__ = [
    "ATOMS", "CODE", "PLAIN", "Outside", "Unread", "array_contents", "attributes_of", "has_memory", "helpers",
    "is_helper", "place_of",
]  # fmt: skip

PLAIN = (bool, int, float, complex, str, bytes, type(None))
"""Types whose values say all there is to know."""
CODE = (types.FunctionType, property, staticmethod, classmethod, functools.partial, functools.partialmethod)
ATOMS = (
    *PLAIN, Enum, type, range, slice, np.generic, torch.dtype, torch.device, torch.layout, torch.memory_format,
    types.FunctionType, types.BuiltinFunctionType, types.MethodType,
)  # fmt: skip
"""Types of values that stay what they are: another value is another object, or is unequal."""
_LARGEST_ARRAY = 4096  # bytes: comparing them takes as long as a call has to spare
_LARGEST_CONTAINER = 256


def has_memory(tensor: torch.Tensor) -> bool:
    """Whether a tensor's place and version can be asked for: not of a sparse one, nor of one of inference mode."""
    return tensor.layout is torch.strided and not tensor.is_inference()


class Outside:
    """The tensors outside of a module's state that its graphs depend on.

    Args:
        constants: tensors whose values graphs hold.
        varying: tensors that graphs read.
    """

    def __init__(self, constants: Iterable[torch.Tensor] = (), varying: Iterable[torch.Tensor] = ()) -> None:
        self._constants = frozenset(tensor.data_ptr() for tensor in constants)
        self._varying = frozenset(tensor.data_ptr() for tensor in varying)

    def seen(self, tensor: torch.Tensor) -> tuple[int, ...] | None:
        """What is another if a graph does not hold any more; None for a tensor that no graph depends on."""
        if not has_memory(tensor):
            return None
        address = tensor.data_ptr()
        if address in self._constants:
            return address, version_of(tensor), tensor.requires_grad
        return (address, id(tensor)) if address in self._varying else None


class Unread:
    """Entries of objects that no graph depends on: forward writes them, and reads them in no later call.

    Args:
        places: of the entries, see `Write.place`.
    """

    def __init__(self, places: Iterable[tuple[int, Any]] = ()) -> None:
        self._places = frozenset(places)
        self._tables = frozenset(table for table, _ in self._places)

    def has(self, owner: object, name: object) -> bool:
        """Whether a table, or the attributes of an object, have such an entry under a name."""
        place = place_of(owner)
        return place in self._tables and (place, name) in self._places

    def rest(self, container: Any) -> Any:
        """Return a container without such entries, of the same kind as far as a comparison asks."""
        table = id(container)
        if table not in self._tables or slots_of(type(container)):
            return container
        if isinstance(container, dict):
            return {name: value for name, value in container.items() if (table, name) not in self._places}
        if not self._places.isdisjoint({(table, MORE), (table, ALL)}):
            return ()
        if isinstance(container, set):
            return {member for member in container if (table, member) not in self._places}
        return tuple([None if (table, place) in self._places else item for place, item in enumerate(container)])


def is_helper(value: object, file: str) -> bool:
    """Whether an object is a namespace, a dataclass, or of a class of this file or of another file of the user's.

    Args:
        value: the object.
        file: the name of the Python module that asks.
    """
    kind = type(value)
    if isinstance(value, (nn.Module, torch.Tensor, types.ModuleType, *ATOMS)):
        return False
    if isinstance(value, types.SimpleNamespace | argparse.Namespace) or dataclasses.is_dataclass(kind):
        return True
    return kind.__module__ == file or is_users(getattr(sys.modules.get(kind.__module__), "__file__", None))


def attributes_of(value: object) -> Mapping[str, Any]:
    """The attributes of an object, in its dictionary and in slots."""
    attributes: dict[str, Any] = getattr(value, "__dict__", {})
    return Slots(value) if slots_of(type(value)) else attributes


def place_of(entries: object) -> int:
    """What a table, or the attributes of an object, are known by: see `Table.key`."""
    return id(entries.owner if isinstance(entries, Slots) else entries)


def helpers(module: nn.Module, names: Container[str] | None = None) -> Iterator[Mapping[str, Any]]:
    """Yield the attributes of the helper objects that a module holds, also in containers, and of those within.

    Args:
        module: what holds them.
        names: in which attributes; None is all.
    """
    file, seen = type(module).__module__, set[int]()
    waiting = [value for name, value in module.__dict__.items() if names is None or name in names]
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        if isinstance(value, dict | list | tuple | deque):
            seen.add(id(value))
            waiting += _items(value)
        elif is_helper(value, file):
            seen.add(id(value))
            attributes = attributes_of(value)
            yield attributes
            waiting += attributes.values()


def _items(value: dict[Any, Any] | list[Any] | tuple[Any, ...] | deque[Any]) -> list[Any]:
    """What is in a container, as Python sees it: a class of a library's may refuse to say how much that is."""
    if isinstance(value, dict):
        return list(dict.values(value)) if dict.__len__(value) <= _LARGEST_CONTAINER else []
    kind: Any = next(kind for kind in (list, tuple, deque) if isinstance(value, kind))
    return list(kind.__iter__(value)) if kind.__len__(value) <= _LARGEST_CONTAINER else []


def array_contents(value: np.ndarray[Any, Any]) -> Any:
    """What is compared of an array: its place and type, and its numbers if they are few."""
    place = value.__array_interface__["data"][0], value.shape, value.dtype.str
    return (*place, value.tobytes()) if value.nbytes <= _LARGEST_ARRAY and value.dtype != object else place
