"""What a capture depends on of a call: its structure and plain values, apart from its tensors."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from ontrain.capture import flatten, leaf_paths, plain_leaves
from ontrain.errors import InputError
from ontrain.training.ortmodule.namespaces import attributes_of

__all__ = ["PLAIN", "Same", "canonical", "walk"]

PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
"""Types whose values are part of a graph."""


def walk(value: object, tensors: list[torch.Tensor], key: list[Any]) -> None:
    """Append a value's tensors, and to the key everything else that a capture depends on."""
    if isinstance(value, torch.Tensor):
        leaves, spec = ([value], None) if value.layout is torch.strided else flatten(value)
        tensors += leaves
        key.append(value.dtype)
        key.append(value.ndim)
        if value.layout is not torch.strided:
            key += [value.layout, spec]
    elif type(value) in PLAIN:
        key.append(type(value))
        # Python holds 0.0 and -0.0 for equal.
        key.append(repr(value) if type(value) in (float, complex) and not value else value)
    elif isinstance(value, tuple | list):
        key.append((type(value), len(value)))
        for leaf in value:
            walk(leaf, tensors, key)
    elif isinstance(value, set | frozenset) and all(type(item) in PLAIN for item in value):
        key.append((type(value), frozenset((type(item), item) for item in value)))
    elif isinstance(value, Mapping):
        key.append((type(value), tuple(value)))
        for leaf in value.values():
            walk(leaf, tensors, key)
    else:
        leaves, spec = flatten(value)
        tensors += leaves
        key.append((type(value), tuple(leaf_paths(spec)), tuple((t.dtype, t.ndim) for t in leaves)))
        for part in plain_leaves(spec):
            if type(part) not in PLAIN and (name := _tensor_in(part)) is not None:
                raise InputError(
                    f"an argument is a {type(part).__name__} that holds a tensor ({name})"
                    " beside what is no plain value",
                    reason="its tensors would be constants of a graph that is captured anew for each such object",
                    way_out="hand its tensors in: as arguments, a dict, a dataclass or a namedtuple",
                )
            key += [part] if type(part) in PLAIN else [Same(part), _numbers(part)]


def _tensor_in(value: object, depth: int = 4) -> str | None:
    """The path of a tensor among the attributes of an opaque object, or of what these hold."""
    if isinstance(value, nn.Module | type | types.ModuleType | types.FunctionType):
        return None
    held = value if isinstance(value, Mapping) else attributes_of(value)
    for name, item in list(held.items()) + list(enumerate(value) if isinstance(value, list | tuple) else ()):
        if isinstance(item, torch.Tensor):
            return str(name)
        if depth and type(item) not in PLAIN and (inner := _tensor_in(item, depth - 1)) is not None:
            return f"{name}.{inner}"
    return None


def _numbers(value: object) -> tuple[Any, ...]:
    """The plain attributes of an object, which forward may read."""
    return tuple((name, attribute) for name, attribute in attributes_of(value).items() if type(attribute) in PLAIN)


class Same:
    """Compares an object by identity, and keeps it, so that its identity is not given to another."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def canonical(named: Mapping[str, object]) -> list[Any]:
    """What a capture depends on of named arguments, whatever the order they are given in."""
    parts: list[Any] = []
    for name in sorted(named):
        key: list[Any] = [name]
        walk(named[name], [], key)
        parts.append(tuple(key))
    return parts
