"""Values that a module's code reads from outside of the module: class attributes, globals, closures."""

from __future__ import annotations

import dis
import functools
import logging
import operator
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from enum import Enum
from itertools import chain
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import nn

from ontrain.capture import is_users
from ontrain.training.ortmodule.key import Same
from ontrain.training.ortmodule.namespaces import (
    ATOMS,
    CODE,
    PLAIN,
    Outside,
    Unread,
    array_contents,
    attributes_of,
    is_helper,
)

__all__ = ["Scope"]

_FIXED = (*ATOMS, *CODE, tuple, frozenset)
_CONTAINERS = (list, dict, set, deque)
_NESTING = (*_CONTAINERS, tuple)
_LARGEST_CONTAINER = 256  # items at each level: looking at them takes as long as a call has to spare
_LIBRARIES = frozenset({"torch", "builtins", "typing", "abc", "collections"})
_NOTHING = object()
_PARTS = operator.attrgetter("__code__", "__defaults__", "__kwdefaults__")
"""What IPython's autoreload replaces in a function when its file was saved anew."""
_DYNAMIC = frozenset({"__dict__", "getattr", "vars"})


class Scope:
    """What the classes of a module hold and inherit, and what their code names outside of them.

    Noticed are: attributes of the classes, of their metaclasses, and of classes of the same file that the code names;
    other bases, and another class of a submodule; functions of the user's that were given other code; globals and
    closures that are numbers, strings, bools or None. What `forward` and the functions of the user's that it calls name
    may also be an enumeration's member, a type, a function or a tuple, or a list, dict, set or array, which are
    compared by their items, a helper object, what a thread has of its own, or another file of the user's, of which the
    attributes are compared that these functions name; the value of a context variable; the level of a logger.

    Args:
        modules: all submodules of what was captured.
        outside: the tensors that captures depend on.
        unread: the entries of objects that no capture depends on.
    """

    def __init__(self, modules: Iterable[nn.Module], outside: Outside, unread: Unread | None = None) -> None:
        self._modules = list(modules)
        self._outside, self._unread = outside, unread or Unread()
        self._tables: list[tuple[Callable[[Any], Any], Mapping[str, Any]]] = []
        self._contained: list[tuple[Mapping[str, Any], str]] = []
        self._objects: list[tuple[Mapping[str, Any], str, object]] = []
        self._answers: list[Callable[[], Any]] = []
        self._opened: dict[int, Mapping[str, Any]] = {}
        self._seen: set[int] = set()
        self._own_names: frozenset[str] | None = None
        self._kinds = list(dict.fromkeys(map(type, self._modules)))
        functions: dict[types.FunctionType, None] = {}
        kinds = _with_metaclasses(base for kind in self._kinds for base in kind.__mro__)
        for kind in kinds:
            for value in vars(kind).values():
                _follow(value, functions)
        self._called = called = _called(self._modules)
        self.functions = list(dict.fromkeys([*functions, *called]))
        self.read = {name for function in called for name in _names(function.__code__)}
        named = [value for function in called for value in _classes_named(function)]
        named += [value for kind in kinds for value in vars(kind).values() if isinstance(value, type)]
        classes = _distinct([*kinds, *_with_metaclasses(_bases(named))])
        self._classes = [vars(kind) for kind in classes]
        self._add_classes(classes)
        self._add_globals(functions, called)
        self._cells = self._plain_cells()
        self._add_closures(called)
        for function in called:
            self._compare_attributes(function, function.__module__)
        self._lengths, self._attributes = list(map(len, self._classes)), _attributes(self._classes)
        self._before, self._parts = self._values(), self._parts_of_functions()

    def unread(self, kind: type, name: str) -> bool:
        """Whether a submodule of a class of the user's has an attribute that no forward looks up.

        What a package's base classes name counts as looked up. If a function of the user's makes the names that it
        looks up, every attribute does.
        """
        if name in self.read or not is_users(_file_of(kind)):
            return False
        if self._own_names is None:
            own = (function for function in self._called if is_users(function.__code__.co_filename))
            self._own_names = frozenset().union(*(_names(function.__code__) for function in own))
        if not self._own_names.isdisjoint(_DYNAMIC):
            return False
        bases = [base for base in kind.__mro__ if _is_own(base) and not is_users(_file_of(base))]
        functions = (_function(value) for base in bases for value in vars(base).values())
        return not any(function is not None and name in _names(function.__code__) for function in functions)

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
        if not all(map(operator.is_, self._parts_of_functions(), self._parts)):
            return True
        return self._values() != self._before

    def _parts_of_functions(self) -> list[object]:
        return list(chain.from_iterable(map(_PARTS, self._called)))

    def _values(self) -> list[Any]:
        return [
            list(map(type, self._modules)),
            [kind.__mro__ for kind in self._kinds],
            [get(table) for get, table in self._tables],
            [self._contents(table[name]) for table, name in self._contained],
            [table[name] is value for table, name, value in self._objects],
            [self.read & attributes.keys() for attributes in self._opened.values()],
            [_content(cell) for cell in self._cells],
            [answer() for answer in self._answers],
        ]

    def _add(self, table: Mapping[str, object], names: Sequence[str]) -> None:
        names = [name for name in names if not self._unread.has(table, name)]
        if names:
            self._tables.append((operator.itemgetter(*names), table))

    def _add_classes(self, classes: Iterable[type]) -> None:
        for kind, attributes in zip(classes, self._classes, strict=True):
            fixed = [name for name, value in attributes.items() if isinstance(value, _FIXED)]
            self._add(attributes, [name for name in fixed if not self._unread.has(kind, name)])
            held = (name for name in self.read & attributes.keys() if self._holds(attributes[name]))
            self._contained += [(attributes, name) for name in held]

    def _plain_cells(self) -> list[types.CellType]:
        """The variables of closures that have plain values."""
        cells = {id(cell): cell for function in self.functions for cell in function.__closure__ or ()}
        plain = (cell for cell in cells.values() if isinstance(_content(cell), _FIXED))
        return [cell for cell in plain if not self._unread.has(cell, "cell_contents")]

    def _add_globals(self, functions: Iterable[types.FunctionType], called: Iterable[types.FunctionType]) -> None:
        scopes: dict[int, tuple[dict[str, Any], set[str]]] = {}
        for function in functions:
            scope = function.__globals__
            names = {name for name in _names(function.__code__) if type(scope.get(name, _NOTHING)) in PLAIN}
            scopes.setdefault(id(scope), (scope, set()))[1].update(names)
        contained: dict[tuple[int, str], tuple[dict[str, Any], str]] = {}
        for function in called:
            scope = function.__globals__
            names = {name for name in _names(function.__code__) if name in scope}
            known = scopes.setdefault(id(scope), (scope, set()))[1]
            known.update(name for name in names if isinstance(scope[name], _FIXED))
            held = {name for name in names if self._holds(scope[name])}
            contained.update(
                {(id(scope), name): (scope, name) for name in held & _globals(function.__code__)} if held else {}
            )
            others = {name for name in names - held if not isinstance(scope[name], _FIXED)}
            for name in others & _globals(function.__code__) if others else ():
                self._look_into(scope, name, function.__module__)
        for scope, plain in scopes.values():
            self._add(scope, sorted(plain))
        self._contained += contained.values()
        for table, name in contained.values():
            self._look_into_items(table[name], str(table.get("__name__")))

    def _add_closures(self, called: Iterable[types.FunctionType]) -> None:
        for function in called:
            closed = {
                name: content
                for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
                if not isinstance(content := _content(cell), _FIXED)
            }
            for name, content in closed.items():
                if self._holds(content):
                    self._contained.append((closed, name))
                    self._look_into_items(content, function.__module__)
                else:
                    self._look_into(closed, name, function.__module__)

    def _look_into(self, table: Mapping[str, Any], name: str, file: str) -> None:
        """Compare of a helper object, or of another file of the user's, what the functions name."""
        value = table[name]
        if isinstance(value, ContextVar | logging.Logger):
            if not self._unread.has(value, "value"):
                self._answers.append(functools.partial(_answer, value))
            return
        module = isinstance(value, types.ModuleType) and is_users(getattr(value, "__file__", None))
        if not module and not is_helper(value, file) and not isinstance(value, threading.local):
            return
        self._objects.append((table, name, value))
        if id(value) in self._seen:
            return
        self._compare_attributes(value, file)

    def _compare_attributes(self, value: object, file: str) -> None:
        """Compare those attributes of a helper object, a file or a function that the functions name."""
        self._seen.add(id(value))
        attributes = self._opened[id(value)] = attributes_of(value)
        known = self.read & attributes.keys()
        self._add(attributes, sorted(name for name in known if isinstance(attributes[name], _FIXED)))
        for inner in sorted(known):
            if self._holds(attributes[inner]):
                self._contained.append((attributes, inner))
                self._look_into_items(attributes[inner], file)
            elif not isinstance(attributes[inner], _FIXED):
                self._look_into(attributes, inner, file)

    def _look_into_items(self, value: object, file: str) -> None:
        if not isinstance(value, _CONTAINERS) or len(value) > _LARGEST_CONTAINER or id(value) in self._seen:
            return
        self._seen.add(id(value))
        for item in value.values() if isinstance(value, dict) else value:
            if isinstance(item, _CONTAINERS):
                self._look_into_items(item, file)
            elif not isinstance(item, _FIXED):
                self._look_into({"item": item}, "item", file)

    def _holds(self, value: object) -> bool:
        """Whether a value may change in place, and a graph depend on what is in it."""
        if isinstance(value, torch.Tensor):
            return self._outside.seen(value) is not None
        return isinstance(value, (*_CONTAINERS, np.ndarray))

    def _contents(self, value: object) -> Any:
        if isinstance(value, torch.Tensor):
            return self._outside.seen(value)
        return array_contents(value) if isinstance(value, np.ndarray) else _items_of(value, self._unread)


def _answer(value: ContextVar[Any] | logging.Logger) -> Any:
    """What a context variable, or a logger that forward asks for its level, says."""
    if isinstance(value, logging.Logger):
        return value.getEffectiveLevel()
    try:
        held = value.get()
    except LookupError:  # nobody has set it
        return None
    return held if isinstance(held, ATOMS) else Same(held)


def _items_of(value: Any, unread: Unread, *outer: object) -> Any:
    """Return a container's items for comparison, nested; of a container of many items only their number.

    Args:
        value: the container, or an item of the containers `outer`: one of these themselves is not gone into again.
        unread: the entries that are left out.
        outer: the innermost first.
    """
    if any(value is container for container in outer):
        return None
    outer, value = (value, *outer), unread.rest(value)
    if isinstance(value, _CONTAINERS) and len(value) > _LARGEST_CONTAINER:
        return len(value)
    if isinstance(value, dict):
        return tuple(
            [(key, _items_of(item, unread, *outer) if isinstance(item, _NESTING) else item)
             for key, item in value.items()]
        )  # fmt: skip
    if isinstance(value, list | tuple | deque):
        return tuple([_items_of(item, unread, *outer) if isinstance(item, _NESTING) else item for item in value])
    return frozenset(value) if isinstance(value, set) else value


def _is_own(kind: type) -> bool:
    return kind.__module__.split(".")[0] not in _LIBRARIES


def _bases(kinds: Iterable[type]) -> Iterator[type]:
    for kind in kinds:
        yield from type.mro(kind) if isinstance(kind, type) else ()


def _with_metaclasses(kinds: Iterable[type]) -> list[type]:
    """The classes that are no library's, and their metaclasses. A class need not have a hash."""
    own = [kind for kind in _distinct(kinds) if _is_own(kind) and not issubclass(kind, Enum)]
    metaclasses = [base for kind in own for base in type(kind).__mro__ if _is_own(base)]
    return _distinct([*own, *(kind for kind in metaclasses if kind.__module__ != "enum")])


def _distinct(kinds: Iterable[type]) -> list[type]:
    return list({id(kind): kind for kind in kinds}.values())


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


def _called(modules: Iterable[nn.Module]) -> dict[types.FunctionType, None]:
    """The functions of the user's that `forward` of these modules may call: methods, those held, and those named."""
    called: dict[types.FunctionType, None] = {}
    held: dict[type, dict[object, None]] = {}
    for module in modules:
        held.setdefault(type(module), {}).update(dict.fromkeys(_held(module)))
    for kind, others in held.items():
        bases = [base for base in kind.__mro__ if _is_own(base)]
        classes = [*bases, *(other for other in others if isinstance(other, type))]
        waiting = [vars(base)["forward"] for base in bases if "forward" in vars(base)]
        waiting += [other for other in others if isinstance(other, types.FunctionType)]
        while waiting:
            function = _function(waiting.pop())
            if function is None or function in called:
                continue
            called[function] = None
            for name in _names(function.__code__):
                waiting += [vars(base)[name] for base in classes if name in vars(base)]
                waiting += _functions_behind(name, function)
            waiting += [other for cell in function.__closure__ or () if _is_users(other := _content(cell), function)]
    return called


def _held(module: nn.Module) -> Iterator[object]:
    """The functions that a module holds, and the classes of its helper objects."""
    for value in module.__dict__.values():
        other = value.func if isinstance(value, functools.partial) else getattr(value, "__func__", value)
        if isinstance(other, types.FunctionType):
            if is_users(other.__code__.co_filename):
                yield other
        elif is_helper(value, type(module).__module__):
            yield type(value)


def _functions_behind(name: str, function: types.FunctionType) -> Iterator[types.FunctionType]:
    """The functions of the user's that a function may mean by a name: a global's, or of a file that it names."""
    for scope in (function.__globals__, *_scopes(function)):
        other = scope.get(name)
        if _is_users(other, function):
            yield other


def _scopes(function: types.FunctionType) -> Iterator[Mapping[str, Any]]:
    """What a function names has: other files of the user's, and classes of helper objects."""
    for name in _names(function.__code__):
        value = function.__globals__.get(name)
        if isinstance(value, types.ModuleType):
            if is_users(getattr(value, "__file__", None)):
                yield vars(value)
        elif value is not None and is_helper(value, function.__module__):
            yield vars(type(value))


def _is_users(other: object, function: types.FunctionType) -> TypeGuard[types.FunctionType]:
    """Whether an object is a function of the same file, or of another one of the user's."""
    if not isinstance(other, types.FunctionType):
        return False
    return other.__globals__ is function.__globals__ or is_users(other.__code__.co_filename)


def _classes_named(function: types.FunctionType) -> Iterator[type]:
    """The classes of its own file that a function names, or closes over."""
    values = [function.__globals__.get(name) for name in _names(function.__code__)]
    values += map(_content, function.__closure__ or ())
    yield from (v for v in values if isinstance(v, type) and v.__module__ == function.__module__)


def _file_of(kind: type) -> str | None:
    return getattr(sys.modules.get(kind.__module__), "__file__", None)


@functools.lru_cache(maxsize=4096)
def _names(code: types.CodeType) -> set[str]:
    """The names that a function, and what is defined in it, may look up: of globals, and of attributes by `getattr`."""
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    texts = [text for text in code.co_consts if isinstance(text, str) and text.isidentifier()]
    return {*code.co_names, *texts}.union(*map(_names, inner))


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
