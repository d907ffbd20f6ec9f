"""Plain values that a module's code reads from outside of the module: class attributes, globals, closures, helpers."""

from __future__ import annotations

import dataclasses
import operator
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import nn

__all__ = ["Scope", "helpers"]

_PLAIN = (bool, int, float, str, type(None))
_CODE = (types.FunctionType, property, staticmethod, classmethod)
_LIBRARIES = frozenset({"torch", "builtins", "typing", "abc", "collections"})
_NOTHING = object()


class Scope:
    """Numbers, strings, bools and None among class attributes, and which functions a class has; the same plain values
    among the globals and closures of these functions, and of functions of the same file that they call.

    Args:
        modules: all submodules of what was captured.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._tables: list[tuple[Callable[[Any], Any], Mapping[str, Any]]] = []
        functions: dict[types.FunctionType, None] = {}
        for kind in dict.fromkeys(base for submodule in modules for base in type(submodule).__mro__ if _is_own(base)):
            attributes = vars(kind)
            self._add(attributes, [n for n, v in attributes.items() if type(v) in _PLAIN or isinstance(v, _CODE)])
            for value in attributes.values():
                _follow(value, functions)
        scopes: dict[int, tuple[dict[str, Any], set[str]]] = {}
        for function in functions:
            scope = function.__globals__
            names = {name for name in _names(function.__code__) if type(scope.get(name, _NOTHING)) in _PLAIN}
            scopes.setdefault(id(scope), (scope, set()))[1].update(names)
        for scope, known in scopes.values():
            self._add(scope, sorted(known))
        cells = [cell for function in functions for cell in function.__closure__ or ()]
        self._cells = [cell for cell in cells if type(_content(cell)) in _PLAIN]

    def values(self) -> list[Any]:
        """Return the values now.

        Raises:
            KeyError: one is gone.
        """
        return [get(table) for get, table in self._tables] + [_content(cell) for cell in self._cells]

    def _add(self, table: Mapping[str, object], names: Sequence[str]) -> None:
        if names:
            self._tables.append((operator.itemgetter(*names), table))


def helpers(module: nn.Module) -> Iterator[dict[str, Any]]:
    """Yield the attributes of the helper objects that a module holds: namespaces, dataclasses, classes of its file."""
    for value in module.__dict__.values():
        kind = type(value)
        own = isinstance(value, types.SimpleNamespace) or dataclasses.is_dataclass(kind)
        if (own or kind.__module__ == type(module).__module__) and not isinstance(value, nn.Module | type):
            yield getattr(value, "__dict__", {})


def _is_own(kind: type) -> bool:
    return kind.__module__.split(".")[0] not in _LIBRARIES


def _follow(value: object, functions: dict[types.FunctionType, None]) -> None:
    """Add the function behind a class's attribute, and those of the same file that it names."""
    if isinstance(value, property):
        value = value.fget
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    if not isinstance(value, types.FunctionType) or value in functions:
        return
    functions[value] = None
    for name in _names(value.__code__):
        other = value.__globals__.get(name)
        if isinstance(other, types.FunctionType) and other.__globals__ is value.__globals__:
            _follow(other, functions)


def _names(code: types.CodeType) -> set[str]:
    """The names that a function, and what is defined in it, may look up among globals."""
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # has no value yet
        return _NOTHING
