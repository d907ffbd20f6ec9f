"""Numbers and lists that note whether code reads them: each stands for an equal one for as long as a trial takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["NotingList", "NotingNumber"]


class NotingNumber(int):
    """A whole number; to add to it, and to print it, is not to read it.

    Args:
        value: the number.
        told: is called when code compares it, or computes with it otherwise.
    """

    _told: Callable[[], None]

    def __new__(cls, value: int, told: Callable[[], None]) -> NotingNumber:
        """Return a number that tells."""
        number = super().__new__(cls, value)
        number._told = told
        return number

    def __add__(self, other: Any) -> Any:
        return self._of(super().__add__(other))

    def __radd__(self, other: Any) -> Any:
        return self._of(super().__radd__(other))

    def __sub__(self, other: Any) -> Any:
        return self._of(super().__sub__(other))

    def __deepcopy__(self, memo: dict[int, Any]) -> NotingNumber:
        return self

    def _of(self, value: Any) -> Any:
        return NotingNumber(value, self._told) if type(value) is int else value


class NotingList(list[Any]):
    """A list; to add items to it, and to empty it, is not to read it.

    Args:
        items: its items.
        told: is called when code asks for its length or its items.
    """

    def __init__(self, items: list[Any], told: Callable[[], None]) -> None:
        super().__init__(items)
        self._told = told


def _noting(kind: type, name: str) -> Callable[..., Any]:
    own = getattr(kind, name)

    def method(self: Any, *args: Any) -> Any:
        self._told()
        return own(self, *args)

    return method


for _name in (
    "__abs__", "__and__", "__bool__", "__divmod__", "__eq__", "__float__", "__floordiv__", "__ge__", "__gt__",
    "__hash__", "__index__", "__int__", "__invert__", "__le__", "__lshift__", "__lt__", "__mod__", "__mul__", "__ne__",
    "__neg__", "__or__", "__pow__", "__rfloordiv__", "__rmod__", "__rmul__", "__rpow__", "__rshift__", "__rsub__",
    "__rtruediv__", "__truediv__", "__xor__",
):  # fmt: skip
    setattr(NotingNumber, _name, _noting(int, _name))
for _name in (
    "__add__", "__contains__", "__delitem__", "__eq__", "__getitem__", "__iter__", "__len__", "__mul__", "__reversed__",
    "copy", "count", "index", "pop", "remove", "reverse", "sort",
):  # fmt: skip
    setattr(NotingList, _name, _noting(list, _name))
