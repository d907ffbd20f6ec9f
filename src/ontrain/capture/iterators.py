"""Iterators that outlive a forward which takes their items: a trace would keep its item for all calls.

self.rates = itertools.cycle([0.1, 0.2])

def forward(self, x):
    return self.layer(x) * next(self.rates)
"""

from __future__ import annotations

import functools
import io
import operator
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import BuiltinMethodType, MethodWrapperType
from typing import Any, NoReturn

from ontrain.capture.source import current_line
from ontrain.capture.tables import Members, Table, has_attributes
from ontrain.capture.ways_out import BROKEN
from ontrain.errors import CaptureError

__all__ = ["IteratorStandIn", "holds_iterators", "refused_iterators", "replaced_iterators"]


class IteratorStandIn:
    """Stands for an iterator.

    Args:
        iterator: stays where it is.
    """

    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        return next(self._iterator)

    def send(self, value: Any) -> Any:
        """Send a value to a generator."""
        return self._iterator.send(value)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterator, name)


class _Refusing(IteratorStandIn):
    """Refuses its items to the thread that traces a forward; others get them."""

    def __init__(self, iterator: Any) -> None:
        super().__init__(iterator)
        self._thread = threading.get_ident()

    def __next__(self) -> Any:
        if threading.get_ident() == self._thread:
            self._refuse()
        return super().__next__()

    def send(self, value: Any) -> Any:
        """Send a value to a generator."""
        if threading.get_ident() == self._thread:
            self._refuse()
        return super().send(value)

    def _refuse(self) -> NoReturn:
        raise CaptureError(
            f"forward takes the next item of an iterator, {_named(type(self._iterator))}",
            source=current_line(),
            reason="the graph would have this item in all calls, and leave the iterator where it is",
            way_out="take the item outside, and hand it in as an argument; or keep the items in a tensor, and the "
            f"number of the next one in a buffer; or {BROKEN}",
        )


@contextmanager
def refused_iterators(tables: Iterable[tuple[Table, Mapping[Any, Any]]]) -> Iterator[None]:
    """Refuse that this thread takes items of the iterators in tables.

    An iterator of a class in Python is followed as other objects are: by what it writes to its attributes.

    Args:
        tables: that forward can come to, and their entries.

    Raises:
        CaptureError: from within the forward; names the line.
    """
    with replaced_iterators(tables, _Refusing, {}):
        yield


@contextmanager
def replaced_iterators(
    tables: Iterable[tuple[Table, Mapping[Any, Any]]],
    kind: type[IteratorStandIn],
    stand_ins: dict[int, IteratorStandIn],
) -> Iterator[None]:
    """Have others stand for the iterators in tables, for a while.

    Args:
        tables: that forward can come to, and their entries.
        kind: of the others.
        stand_ins: those of earlier calls, by the identity of what they stand for. New ones are added, and those whose
            iterator is gone are taken out.
    """
    known = dict(stand_ins)
    stand_ins.clear()

    def stand_in(iterator: Any) -> IteratorStandIn:
        place = id(iterator)
        if place not in stand_ins:
            stand_ins[place] = known[place] if place in known else kind(iterator)
        return stand_ins[place]

    held = [
        (table, name, value, _replaced(value, stand_in))
        for table, entries in tables
        if not isinstance(table, Members)
        for name, value in entries.items()
        if isinstance(value, _HOLDING) or _is_refused(type(value))
    ]
    held = [(table, name, value, new) for table, name, value, new in held if new is not value]
    for table, name, _, new in held:
        table.put(name, new)
    try:
        yield
    finally:
        for table, name, value, new in held:
            if table.value(name) is new:
                table.put(name, value)


def holds_iterators(table: Table) -> bool:
    """Return whether an entry of a table is an iterator that others may stand for, or holds one."""
    values = () if isinstance(table, Members) else table.entries().values()
    return any(_replaced(value, IteratorStandIn) is not value for value in values)


_METHODS = (MethodWrapperType, BuiltinMethodType)
_HOLDING = (tuple, functools.partial, *_METHODS)
"""What holds an iterator and cannot be given another one in its place."""


def _replaced(value: Any, stand_in: Callable[[Any], IteratorStandIn]) -> Any:
    """Return a value with others for the iterators that it is, or holds; the value itself if there are none."""
    if isinstance(value, _METHODS):
        owner = value.__self__
        taking = value.__name__ in ("__next__", "send") and _is_refused(type(owner))
        return getattr(stand_in(owner), value.__name__) if taking else value
    if isinstance(value, functools.partial):
        held = (value.func, value.args, tuple(value.keywords.values()))
        function, args, named = (_replaced(part, stand_in) for part in held)
        if function is value.func and args is value.args and named is held[2]:
            return value
        return functools.partial(function, *args, **dict(zip(value.keywords, named, strict=True)))
    if type(value) is tuple or hasattr(type(value), "_fields"):
        items = [_replaced(item, stand_in) for item in value]
        same = all(map(operator.is_, items, value))
        return value if same else tuple(items) if type(value) is tuple else type(value)(*items)
    return stand_in(value) if _is_refused(type(value)) else value


def _named(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _is_refused(kind: type) -> bool:
    return issubclass(kind, Iterator) and not issubclass(kind, IteratorStandIn | io.IOBase) and not has_attributes(kind)
