"""What a forward writes to Python objects: a graph writes nothing, so whoever runs it repeats the writes.

def forward(self, x):
    hidden = self.layer(x)
    self.seen["hidden"] = hidden.detach()
    self.losses.append(hidden.square().mean())
"""

from __future__ import annotations

import gc
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from types import EllipsisType
from typing import Any

import torch
from torch import nn

from ontrain.capture.structure import Spec, flatten, plain_leaves, unflatten
from ontrain.capture.sympy_sizes import size_of
from ontrain.capture.tables import ALL, MISSING, MORE, ORDER, Items, Members, Table, tables_of
from ontrain.errors import CaptureError
from ontrain.internals import of
from ontrain.sizes import Size

__all__ = ["Tables", "Write", "is_same", "known_writes"]

_PLAIN = (bool, int, float, complex, str, bytes, range, EllipsisType, type(None), torch.dtype, torch.device, type, Enum)
_SIZES = (torch.SymInt, torch.SymFloat)
_FOLLOWED = 64
"""How many objects that forward has made are looked into for tensors."""


@dataclass(frozen=True, eq=False)
class Write:
    """One entry of a table, and what a call of forward makes of it.

    Attributes:
        table: which has the entry.
        name: of the entry; of a list also `MORE`, what is appended to it, and `ALL`, its contents.
        before: the value when forward begins, `MISSING` if there is none.
        spec: the structure of the value when forward ends; its sizes are numbers of torch's until `known_writes`. None
            where the entry is gone.
        outputs: how many tensors of the graph the value consists of.
        is_repeatable: whether the value consists of tensors, sizes and plain values, so that it can be made again.
        is_bare: whether it is an object without tensors, such as a set or an array, that forward has made.
    """

    table: Table
    name: Any
    before: Any
    spec: Spec | None
    outputs: int = 0
    is_repeatable: bool = True
    is_bare: bool = False

    @property
    def place(self) -> tuple[int, Any]:
        """What a watch knows the entry by."""
        return self.table.key, self.name

    @property
    def holds_tensors(self) -> bool:
        """Whether the value consists of tensors, the graph's or the module's own."""
        leaves = plain_leaves(self.spec) if self.spec is not None else []
        return self.outputs > 0 or any(isinstance(leaf, _Registered) for leaf in leaves)

    @property
    def is_number(self) -> bool:
        """Whether the value is a number that follows from the values of tensors."""
        return self.spec is not None and self.spec.kind == "number"

    @property
    def holds_numbers(self) -> bool:
        """Whether the value consists of such numbers, among others."""
        return self.spec is not None and _holds_numbers(self.spec)

    @property
    def holds_sizes(self) -> bool:
        """Whether the value consists of sizes of the inputs, among others."""
        return self.spec is not None and any(isinstance(leaf, (*_SIZES, Size)) for leaf in plain_leaves(self.spec))

    @property
    def length(self) -> int:
        """How many items are written, if it is to a list."""
        return max(len(self.spec.children), 1) if self.spec is not None else 0

    def of(self, entries: Mapping[Any, Any]) -> Any:
        """What entries have in this place; of a list the items that were written last, None where there is nothing."""
        return list(entries.values())[-self.length :] if self.name in (ALL, MORE) else entries.get(self.name)

    def value(self, tensors: Sequence[torch.Tensor], sizes: Mapping[str, int]) -> Any:
        """The value when a call ends.

        Args:
            tensors: that it consists of.
            sizes: of the call, by symbol.
        """
        return MISSING if self.spec is None else unflatten(_bound(self.spec, sizes), tensors)

    @property
    def after(self) -> Any:
        """The value when forward ends if it is a number, a text or the like; else the kind of what it is."""
        if self.spec is None:
            return MISSING
        return self.spec.value if self.spec.kind == "plain" else self.spec.kind

    @property
    def problem(self) -> str:
        """What a warning says of a value that a graph cannot write."""
        if self.is_repeatable and self.name in (ALL, MORE):
            return f"reads what its earlier calls have added to {self}; a graph adds nothing to it, and reads nothing."
        if self.spec is not None and any(isinstance(leaf, Size) for leaf in plain_leaves(self.spec)):
            return f"changes {self} by the values of tensors; a graph leaves it as it is. Keep the number in a buffer."
        return f"writes to {self} what a graph cannot write; it stays as it was. Return it from forward if you need it."

    def prepare(self) -> None:
        """Give an entry that there is not yet a value, for others to see that it is there."""
        is_read = not self.table.has_attributes and not self.is_repeatable
        if is_read or isinstance(self.table, Members) or self.name in (ALL, MORE, ORDER):
            return  # code would take it for what forward has written
        if self.name not in self.table.entries():
            self.table.put(self.name, None)

    def take_back(self, before: Mapping[Any, Any]) -> None:
        """Give the table what it had before, or the entry alone if it has names.

        Args:
            before: all entries of the table.
        """
        if isinstance(self.table, Items):
            self.table.put(ALL, list(before.values()))
        elif self.name is ORDER:
            self.table.put(ORDER, tuple(before))
        else:
            self.table.put(self.name, before.get(self.name, MISSING))

    def __str__(self) -> str:
        return self.table.described(self.name)


class Tables:
    """The entries of all tables that a module's forward can come to, as they are before a call.

    Args:
        module: with the parameters and containers that forward sees.
        originals: containers of the module's own, by the place of those that stand for them meanwhile.

    Attributes:
        before: each table, and its entries.
    """

    def __init__(self, module: nn.Module, originals: Mapping[int, Any] | None = None) -> None:
        self._originals = originals or {}
        self._registered = {
            id(tensor): _Registered(part, name)
            for part in module.modules()
            for table in ("torch.nn.Module._parameters", "torch.nn.Module._buffers")
            for name, tensor in of(table, part).items()
        }
        self.before = [(table, table.entries()) for table in tables_of(module)]

    def changes(self) -> list[tuple[Write, list[torch.Tensor]]]:
        """Return what was written since, and the tensors that each value consists of."""
        changes: dict[tuple[int, Any], tuple[Write, list[torch.Tensor]]] = {}
        for table, before in self.before:
            for write, tensors in _changes(table, before, table.entries(), self._registered):
                original = self._originals.get(id(table.owner))
                own = table if original is None else type(table)(original)
                changes.setdefault((own.key, write.name), (replace(write, table=own), tensors))
        return list(changes.values())

    def restore(self) -> None:
        """Take back what `changes` returns."""
        for table, before in self.before:
            for write, _ in _changes(table, before, table.entries(), self._registered):
                write.take_back(before)


def _changes(
    table: Table, before: dict[Any, Any], now: dict[Any, Any], registered: Mapping[int, _Registered]
) -> Iterator[tuple[Write, list[torch.Tensor]]]:
    if isinstance(table, Items):
        changed = _items_changed(table, list(before.values()), list(now.values()))
    else:
        names = [name for name in (*before, *(n for n in now if n not in before)) if not _is_pythons(name)]
        changed = ((name, before.get(name, MISSING), now.get(name, MISSING)) for name in names)
    for name, was, value in changed:
        if is_same(was, value):
            continue
        if value is MISSING:
            yield Write(table, name, was, None), []
        else:
            yield from _written(table, _key(name), was, value, registered)
    if type(table) is Table:
        order = [*(name for name in before if name in now), *(name for name in now if name not in before)]
        if not all(map(operator.is_, order, now)):
            yield from _written(table, ORDER, tuple(before), tuple(map(_key, now)), registered)


def _items_changed(table: Items, before: list[Any], now: list[Any]) -> Iterator[tuple[Any, Any, Any]]:
    """What became of a list: other items, items behind its own, or other contents.

    A bounded one loses as many of its first items as there are new ones behind it.
    """
    old = {id(item) for item in before if not isinstance(item, _PLAIN)}
    if len(before) == len(now):
        changed = [(place, was, value) for place, (was, value) in enumerate(zip(before, now, strict=True))
                   if was is not value]  # fmt: skip
        if not any(id(value) in old for _, _, value in changed):
            yield from changed
            return
    for count in range(1, len(now) + 1):
        rest = now[:-count]
        lost = len(before) - len(rest)
        if lost >= 0 and (not lost or table.is_full) and all(map(operator.is_, before[lost:], rest)):
            yield MORE, MISSING, now[-count:]
            return
    yield ALL, MISSING, now


def _is_pythons(name: Any) -> bool:
    return isinstance(name, str) and name.startswith("__") and name.endswith("__")


def is_same(was: Any, value: Any) -> bool:
    """Whether a value is the one before: the same object, an equal number, or a container of the same items."""
    if was is value:
        return True
    if type(was) is not type(value):
        return False
    if type(value) in (list, tuple) and len(was) == len(value):
        return all(map(is_same, was, value))
    if isinstance(value, slice):
        return is_same([was.start, was.stop, was.step], [value.start, value.stop, value.step])
    return isinstance(value, _PLAIN) and bool(was == value)


@dataclass(frozen=True)
class _Registered:
    """A parameter or buffer of the module's."""

    part: nn.Module
    name: str

    def tensor(self) -> Any:
        return getattr(self.part, self.name)


def _with_registered(
    tensors: Sequence[torch.Tensor], spec: Spec, registered: Mapping[int, _Registered]
) -> tuple[list[torch.Tensor], Spec]:
    """The tensors of a value that are none of the module's own, and its structure with these in their places."""
    own = [registered.get(id(tensor)) for tensor in tensors]
    if not any(own):
        return list(tensors), spec
    owners = iter(own)

    def placed(part: Spec) -> Spec:
        if part.kind != "tensor":
            return replace(part, children=tuple(map(placed, part.children)))
        owner = next(owners)
        return part if owner is None else Spec("plain", value=owner)

    return [tensor for tensor, owner in zip(tensors, own, strict=True) if owner is None], placed(spec)


def _written(
    table: Table, name: Any, before: Any, value: Any, registered: Mapping[int, _Registered]
) -> Iterator[tuple[Write, list[torch.Tensor]]]:
    tensors, spec = _with_registered(*flatten(value), registered)
    repeatable = _is_fixed(name) and all(
        isinstance(leaf, (*_PLAIN, *_SIZES, _Registered)) for leaf in plain_leaves(spec)
    )
    if repeatable and all(t.layout is torch.strided and not t.is_complex() for t in tensors):
        yield Write(table, name, before, spec, len(tensors)), tensors
    else:
        bare = not tensors and not _holds_tensors(value)
        yield Write(table, name, before, spec, is_repeatable=False, is_bare=bare), []


def _key(name: Any) -> Any:
    """A key, with a whole number in the place of one of torch's, which is none outside of a trace."""
    if type(name) is tuple:
        return tuple(map(_key, name))
    return int(name) if isinstance(name, torch.SymInt) else name


def _is_fixed(name: Any) -> bool:
    """Whether a name is one of later calls, too: a method's cache has the module that it is of among its names."""
    return all(map(_is_fixed, name)) if isinstance(name, tuple) else isinstance(name, (*_PLAIN, nn.Module))


def _holds_tensors(value: Any) -> bool:
    """Whether there is a tensor in an object that forward has made, or within what it refers to."""
    layer, seen = [value], 0
    while layer and seen < _FOLLOWED:
        if any(isinstance(part, torch.Tensor) for part in layer):
            return True
        seen += len(layer)
        layer = [part for part in gc.get_referents(*layer) if not isinstance(part, type) and gc.is_tracked(part)]
    return False


def known_writes(writes: Sequence[Write], symbols: set[str]) -> list[Write]:
    """Return writes with expressions of symbols in the places of torch's numbers.

    Args:
        writes: as forward has left them.
        symbols: the sizes of the inputs. What follows from other numbers is not repeatable.
    """
    return [_known(write, symbols) for write in writes]


def _known(write: Write, symbols: set[str]) -> Write:
    if write.spec is None or not any(isinstance(leaf, _SIZES) for leaf in plain_leaves(write.spec)):
        return write
    try:
        spec = _sized(write.spec)
    except CaptureError:  # a function without translation
        return replace(write, is_repeatable=False)
    sizes = [leaf for leaf in plain_leaves(spec) if isinstance(leaf, Size)]
    return replace(write, spec=spec, is_repeatable=all(size.symbols() <= symbols for size in sizes))


def _holds_numbers(spec: Spec) -> bool:
    return spec.kind == "number" or any(map(_holds_numbers, spec.children))


def _sized(spec: Spec) -> Spec:
    if isinstance(spec.value, _SIZES):
        return replace(
            spec, value=size_of(spec.value.node.expr), type=float if type(spec.value) is torch.SymFloat else int
        )
    return replace(spec, children=tuple(map(_sized, spec.children)))


def _bound(spec: Spec, sizes: Mapping[str, int]) -> Spec:
    """The structure with numbers in the places of its sizes."""
    if isinstance(spec.value, _Registered):
        return replace(spec, value=spec.value.tensor())
    if isinstance(spec.value, Size):
        kind: Any = spec.type
        return replace(spec, value=kind(spec.value.value(sizes)))
    if not spec.children or not any(isinstance(leaf, (Size, _Registered)) for leaf in plain_leaves(spec)):
        return spec
    return replace(spec, children=tuple(_bound(child, sizes) for child in spec.children))
