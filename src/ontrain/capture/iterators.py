"""Iterators that outlive a forward which takes their items: a trace would keep its item for all calls.

self.rates = itertools.cycle([0.1, 0.2])

def forward(self, x):
    return self.layer(x) * next(self.rates)
"""

from __future__ import annotations

import io
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

from ontrain.capture.source import current_line
from ontrain.capture.tables import Members, Table, has_attributes
from ontrain.capture.ways_out import BROKEN
from ontrain.errors import CaptureError

__all__ = ["refused_iterators"]


class _Refusing:
    """Stands for an iterator while a thread traces a forward; others take their items of it.

    Args:
        iterator: stays where it is.
    """

    def __init__(self, iterator: Any) -> None:
        self._iterator, self._thread = iterator, threading.get_ident()

    def __iter__(self) -> _Refusing:
        return self

    def __next__(self) -> Any:
        if threading.get_ident() == self._thread:
            self._refuse()
        return next(self._iterator)

    def send(self, value: Any) -> Any:
        """Send a value to a generator."""
        if threading.get_ident() == self._thread:
            self._refuse()
        return self._iterator.send(value)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterator, name)

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
    stand_ins: dict[int, _Refusing] = {}
    held = [
        (table, name, value)
        for table, entries in tables
        if not isinstance(table, Members)
        for name, value in entries.items()
        if _is_refused(type(value))
    ]
    for table, name, value in held:
        table.put(name, stand_ins.setdefault(id(value), _Refusing(value)))
    try:
        yield
    finally:
        for table, name, value in held:
            if table.value(name) is stand_ins[id(value)]:
                table.put(name, value)


def _named(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _is_refused(kind: type) -> bool:
    return issubclass(kind, Iterator) and not issubclass(kind, _Refusing | io.IOBase) and not has_attributes(kind)
