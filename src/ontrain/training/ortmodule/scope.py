"""Values that a module's code reads from outside of the module: class attributes, globals, closures, helpers."""

from __future__ import annotations

import dataclasses
import dis
import functools
import operator
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

import torch
from torch import nn

from ontrain.internals import of

__all__ = ["Scope", "helpers"]

_PLAIN = (bool, int, float, str, type(None))
_CODE = (types.FunctionType, property, staticmethod, classmethod, functools.partial, functools.partialmethod)
_FIXED = (*_PLAIN, *_CODE, Enum, tuple, frozenset, type, torch.dtype, torch.device)
_CONTAINERS = (list, dict, set)
_LARGEST_CONTAINER = 256  # items at each level: looking at them takes as long as a call has to spare
_LIBRARIES = frozenset({"torch", "builtins", "typing", "abc", "collections"})
_NOTHING = object()


class Scope:
    """What the classes of a module hold and inherit, and what their code names outside of them.

    Noticed are: attributes of the classes, of their metaclasses, and of classes of the same file that the code names;
    other bases, and another class of a submodule; globals and closures that are numbers, strings, bools or None. What
    `forward` and the functions that it calls name may also be an enumeration's member, a type, a function or a tuple,
    or a list, dict or set, which are compared by their items.

    Args:
        modules: all submodules of what was captured.
        constants: addresses of the tensors that captures hold as they were.
    """

    def __init__(self, modules: Iterable[nn.Module], constants: frozenset[int] = frozenset()) -> None:
        self._modules = list(modules)
        self._constants = constants
        self._tables: list[tuple[Callable[[Any], Any], Mapping[str, Any]]] = []
        self._contained: list[tuple[Mapping[str, Any], str]] = []
        self._kinds = list(dict.fromkeys(map(type, self._modules)))
        functions: dict[types.FunctionType, None] = {}
        kinds = _with_metaclasses(base for kind in self._kinds for base in kind.__mro__)
        for kind in kinds:
            for value in vars(kind).values():
                _follow(value, functions)
        called = _called(self._kinds)
        read = {name for function in called for name in _names(function.__code__)}
        named = [value for function in called for value in _classes_named(function)]
        named += [value for kind in kinds for value in vars(kind).values() if isinstance(value, type)]
        self._classes = [vars(kind) for kind in dict.fromkeys([*kinds, *_with_metaclasses(_bases(named))])]
        for attributes in self._classes:
            self._add(attributes, [name for name, value in attributes.items() if isinstance(value, _FIXED)])
            self._contained += [
                (attributes, name) for name in read & attributes.keys() if self._holds(attributes[name])
            ]
        self._add_globals(functions, called)
        self._cells = [cell for function in functions for cell in function.__closure__ or ()]
        self._cells = [cell for cell in self._cells if isinstance(_content(cell), _FIXED)]
        self._lengths, self._attributes = list(map(len, self._classes)), _attributes(self._classes)
        self._before = self._values()

    def changed(self) -> bool:
        """Whether a value is another one now.

        Raises:
            KeyError: one is gone.
            RuntimeError, ValueError: one is now a tensor or an array, whose comparison is no bool.
        """
        lengths = list(map(len, self._classes))
        if lengths != self._lengths:
            # Python adds names of its own to a class, when an object is copied, for instance.
            if _attributes(self._classes) != self._attributes:
                return True
            self._lengths = lengths
        return self._values() != self._before

    def _values(self) -> list[Any]:
        return [
            list(map(type, self._modules)),
            [kind.__mro__ for kind in self._kinds],
            [get(table) for get, table in self._tables],
            [self._contents(table[name]) for table, name in self._contained],
            [_content(cell) for cell in self._cells],
        ]

    def _add(self, table: Mapping[str, object], names: Sequence[str]) -> None:
        if names:
            self._tables.append((operator.itemgetter(*names), table))

    def _add_globals(self, functions: Iterable[types.FunctionType], called: Iterable[types.FunctionType]) -> None:
        scopes: dict[int, tuple[dict[str, Any], set[str]]] = {}
        for function in functions:
            scope = function.__globals__
            names = {name for name in _names(function.__code__) if type(scope.get(name, _NOTHING)) in _PLAIN}
            scopes.setdefault(id(scope), (scope, set()))[1].update(names)
        contained: dict[tuple[int, str], tuple[dict[str, Any], str]] = {}
        for function in called:
            scope = function.__globals__
            names = {name for name in _names(function.__code__) if name in scope}
            scopes[id(scope)][1].update(name for name in names if isinstance(scope[name], _FIXED))
            held = {name for name in names if self._holds(scope[name])}
            contained.update(
                {(id(scope), name): (scope, name) for name in held & _globals(function.__code__)} if held else {}
            )
        for scope, known in scopes.values():
            self._add(scope, sorted(known))
        self._contained += contained.values()

    def _holds(self, value: object) -> bool:
        """Whether a value may change in place, and a graph depend on what is in it."""
        if isinstance(value, torch.Tensor):
            return not value.is_inference() and value.data_ptr() in self._constants
        return isinstance(value, _CONTAINERS)

    def _contents(self, value: object) -> Any:
        if isinstance(value, torch.Tensor):
            return value.data_ptr(), of("torch.Tensor._version", value)
        return _items_of(value)


def _items_of(value: object, *outer: object) -> Any:
    """Return a container's items for comparison, nested; of a container of many items only their number.

    Args:
        value: the container, or an item of the containers `outer`: one of these themselves is not gone into again.
        outer: the innermost first.
    """
    if any(value is container for container in outer):
        return None
    if isinstance(value, _CONTAINERS) and len(value) > _LARGEST_CONTAINER:
        return len(value)
    if isinstance(value, dict):
        return tuple([(key, _items_of(item, value, *outer)) for key, item in value.items()])
    if isinstance(value, list | tuple):
        return tuple([_items_of(item, value, *outer) for item in value])
    return frozenset(value) if isinstance(value, set) else value


def helpers(module: nn.Module) -> Iterator[dict[str, Any]]:
    """Yield the attributes of the helper objects that a module holds: namespaces, dataclasses, classes of its file;
    and of the helpers that these hold.
    """
    seen: set[int] = set()
    waiting = list(module.__dict__.values())
    while waiting:
        value = waiting.pop()
        kind = type(value)
        own = isinstance(value, types.SimpleNamespace) or dataclasses.is_dataclass(kind)
        if id(value) in seen or isinstance(value, nn.Module | type):
            continue
        if own or kind.__module__ == type(module).__module__:
            seen.add(id(value))
            attributes = getattr(value, "__dict__", {})
            yield attributes
            waiting += attributes.values()


def _is_own(kind: type) -> bool:
    return kind.__module__.split(".")[0] not in _LIBRARIES


def _bases(kinds: Iterable[type]) -> Iterator[type]:
    for kind in kinds:
        yield from type.mro(kind) if isinstance(kind, type) else ()


def _with_metaclasses(kinds: Iterable[type]) -> list[type]:
    """The classes that are no library's, and their metaclasses."""
    own = [kind for kind in dict.fromkeys(kinds) if _is_own(kind) and not issubclass(kind, Enum)]
    metaclasses = [base for kind in own for base in type(kind).__mro__ if _is_own(base)]
    return list(dict.fromkeys([*own, *(kind for kind in metaclasses if kind.__module__ != "enum")]))


def _attributes(classes: Iterable[Mapping[str, object]]) -> list[frozenset[str]]:
    return [frozenset(name for name in names if not name.startswith("__")) for names in classes]


def _function(value: object) -> types.FunctionType | None:
    """The function behind a class's attribute."""
    if isinstance(value, property):
        value = value.fget
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    return value if isinstance(value, types.FunctionType) else None


def _follow(value: object, functions: dict[types.FunctionType, None]) -> None:
    """Add the function behind a class's attribute, and those of the same file that it names."""
    function = _function(value)
    if function is None or function in functions:
        return
    functions[function] = None
    for name in _names(function.__code__):
        other = function.__globals__.get(name)
        if isinstance(other, types.FunctionType) and other.__globals__ is function.__globals__:
            _follow(other, functions)


def _called(kinds: Iterable[type]) -> dict[types.FunctionType, None]:
    """The functions that `forward` of these classes may call: methods, and functions of the same file."""
    called: dict[types.FunctionType, None] = {}
    for kind in kinds:
        bases = [base for base in kind.__mro__ if _is_own(base)]
        waiting = [vars(base)["forward"] for base in bases if "forward" in vars(base)]
        while waiting:
            function = _function(waiting.pop())
            if function is None or function in called:
                continue
            called[function] = None
            for name in _names(function.__code__):
                waiting += [vars(base)[name] for base in bases if name in vars(base)]
                other = function.__globals__.get(name)
                if isinstance(other, types.FunctionType) and other.__globals__ is function.__globals__:
                    waiting.append(other)
    return called


def _classes_named(function: types.FunctionType) -> Iterator[type]:
    """The classes of its own file that a function names, or closes over."""
    values = [function.__globals__.get(name) for name in _names(function.__code__)]
    values += map(_content, function.__closure__ or ())
    yield from (v for v in values if isinstance(v, type) and v.__module__ == function.__module__)


@functools.lru_cache(maxsize=4096)
def _names(code: types.CodeType) -> set[str]:
    """The names that a function, and what is defined in it, may look up among globals."""
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _globals(code: types.CodeType) -> set[str]:
    """The names that a function, and what is defined in it, does look up among globals."""
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    loads = {step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return loads.union(*map(_globals, inner))


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # has no value yet
        return _NOTHING
