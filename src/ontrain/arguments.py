"""Arguments of the wrong kind are refused by name. Outside of the rooms: each has calls that users make."""

from __future__ import annotations

import math
import numbers
import os
from collections.abc import Iterable, Mapping
from typing import Any

from ontrain.errors import OptionError

__all__ = [
    "checked_flag", "checked_kind", "checked_names", "checked_number", "checked_path", "checked_whole", "plain_values",
    "told",
]  # fmt: skip


def told(value: Any) -> str:
    """Return what was given in a few words: a plain value as it is written, anything else by its type."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return repr(value)
    return f"a {type(value).__name__}"


def plain_values(values: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return named values with numpy's numbers and flags as Python's, which JSON and a graph's attributes take."""
    return {name: _plain(value) for name, value in values.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, numbers.Real) and not isinstance(value, int | float):
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    return bool(value) if type(value).__name__ in ("bool_", "bool") else value  # numpy's, too


def checked_kind(what: str, value: Any, kinds: type | tuple[type, ...], way_out: str) -> Any:
    """Return an argument of one of some types.

    Raises:
        OptionError: it is of none.
    """
    if not isinstance(value, kinds):
        raise OptionError(f"{what} is a {type(value).__name__}", way_out=way_out)
    return value


def checked_path(what: str, value: Any) -> str:
    """Return a path as text.

    Raises:
        OptionError: it is no str, bytes or os.PathLike, is empty, or no system could have such a name.
    """
    try:
        path = os.fsdecode(value)
    except TypeError:
        path = ""
    if not path or "\0" in path:
        raise OptionError(f"{what} is {told(value)}", way_out="give a path")
    return path


def checked_flag(what: str, value: Any) -> bool:
    """Return True or False.

    Raises:
        OptionError: it is neither.
    """
    if not isinstance(value, bool) and type(value).__name__ not in ("bool_", "bool"):  # numpy's, too
        raise OptionError(f"{what} is {told(value)}", way_out="give True or False")
    return bool(value)


def checked_names(what: str, value: Any) -> list[str]:
    """Return names as a list of their own; a generator's, too, which could be read once only.

    Raises:
        OptionError: one string or dictionary in place of several names, or a member that is no text.
    """
    if isinstance(value, str):
        raise OptionError(f"{what} is one string, {value!r}", way_out="give a list of names")
    if not isinstance(value, Iterable) or isinstance(value, bytes | Mapping):
        raise OptionError(f"{what} is {told(value)}", way_out="give a list of names")
    names = list(value)
    for name in names:
        if not isinstance(name, str):
            raise OptionError(f"{what} has {told(name)} among its names", way_out="give a list of names")
    return names


def checked_number(
    what: str, value: Any, allowed: str = "a number", *, at_least: float = -math.inf, below: float = math.inf,
    infinite: bool = False,
) -> float:  # fmt: skip
    """Return a number in [at_least, below), numpy's scalars among them; infinity only if `infinite` lets it in.

    Raises:
        OptionError: it is none, or out of range; `allowed` says in words what is.
    """
    number = math.nan
    if not isinstance(value, bool | str | bytes):
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError, RuntimeError):
            number = math.nan
    inside = at_least <= number < below or (infinite and abs(number) == below == math.inf and number >= at_least)
    if not inside or (math.isinf(number) and not infinite):
        raise OptionError(f"{what} is {told(value)}", way_out=f"give {allowed}")
    return number


def checked_whole(what: str, value: Any, at_least: int, at_most: int | None = None) -> int:
    """Return a whole number from `at_least`, numpy's among them.

    Raises:
        OptionError: it is none, or out of range.
    """
    try:
        number = at_least - 1 if isinstance(value, bool) else value.__index__()
    except (AttributeError, TypeError):
        number = at_least - 1
    if number < at_least or (at_most is not None and number > at_most):
        allowed = f"a whole number from {at_least}" + ("" if at_most is None else f" to {at_most}")
        raise OptionError(f"{what} is {told(value)}", way_out=f"give {allowed}")
    return int(number)
