"""The objects that Python code can come to from some objects, through what they hold and the names that it reads."""

from __future__ import annotations

import dis
import gc
import logging
import sys
import threading
from array import array
from collections.abc import Iterable, Iterator, Mapping
from types import CodeType, FrameType, FunctionType, GeneratorType, ModuleType
from typing import Any

import numpy as np
from torch import nn

from ontrain.capture.installed import is_installed
from ontrain.capture.source import is_foreign, is_users

__all__ = ["files_named", "held_by", "reachable"]

_SHUT = frozenset({"mpmath", "numpy", "onnx", "onnx_ir", "onnxruntime", "sympy", "torch"})
"""Packages that are not looked into, beside Python's own and ours: they hold nothing of a user's."""
_CLOSED = _SHUT | {"ontrain"}
_LARGE = 4096
_UNTRACKED = (dict, np.ndarray, bytearray, array)
_IMPORTS = dis.opmap["IMPORT_NAME"]
_looked_at: dict[int, CodeType] = {}
"""Functions of installed packages whose variables were looked at."""
_behind_packages: list[Any] = []
"""The instances behind these variables."""
_known: dict[int, tuple[CodeType, frozenset[str]]] = {}
"""The names of each code, which is kept alive: its place in memory stands for it."""
_NAME_OF_MODULE = vars(type)["__module__"].__get__


def reachable(roots: Iterable[Any], kinds: tuple[type, ...]) -> list[Any]:
    """Return the instances of `kinds` among what lies behind `roots` and what their functions can name.

    Each step goes from an object to those that it refers to, as the garbage collector does. So nothing comes up that
    another thread is just making, as it does in `gc.get_objects`: a reference to a tuple that is not complete makes
    its construction fail.

    A function leads to its closure and defaults, and to those variables of its file, and of modules, whose names or
    texts stand in its code. What it looks up by a name that it computes does not come up. The variables that an
    installed package's function names are looked at when it comes up for the first time in a process; the instances
    behind them are among the results from then on. Modules, classes and functions of Python itself, of torch, numpy,
    sympy, onnx and ontrain are left out; their instances are not.
    """
    walk = _Walk()
    instances = walk.instances(roots, kinds)
    first = len(_behind_packages)
    new = walk.instances(walk.named_by_packages(), kinds)
    while walk.packages:
        new += walk.instances(walk.named_by_packages(), kinds)
    # What the functions name is there before they count as looked at: other threads walk meanwhile.
    _behind_packages.extend(new)
    _looked_at.update(walk.looked_at)
    known = {id(part) for part in instances}
    return instances + [part for part in (*_behind_packages[:first], *new) if id(part) not in known]


def held_by(roots: Iterable[Any]) -> list[Any]:
    """Return all objects behind `roots`, see `reachable`.

    What an installed package's functions name is left out, and what instances of torch's, numpy's and sympy's classes
    refer to, unless they are modules of a network. So are the items of large containers: a dataset's.
    """
    walk = _Walk()
    held = layer = walk.new(roots)
    while layer:
        layer = walk.new(walk.behind(part for part in layer if not _is_closed(type(part)) and not _is_large(part)))
        held = held + layer
    return held


def files_named(function: FunctionType) -> list[tuple[ModuleType, frozenset[str]]]:
    """Return the files of the user's that a function names, or imports, and which variables of each it may mean."""
    named = _named_by(function.__code__, function.__globals__)
    files = [value for value in named if issubclass(type(value), ModuleType)]
    names = _names(function.__code__)
    return [(file, names & vars(file).keys()) for file in files if is_users(vars(file).get("__file__"))]


def _named_by(code: CodeType, variables: Mapping[str, Any]) -> list[Any]:
    """The variables of its file that code names, and the files that it imports."""
    names = _names(code)
    named = [variables[name] for name in names & variables.keys()]
    if _IMPORTS in code.co_code[::2]:
        package = variables.get("__package__")
        loaded = names.union(f"{package}.{name}" for name in names) & sys.modules.keys()
        named += [sys.modules[name] for name in loaded]
    return named


def _is_large(part: Any) -> bool:
    kind = next((kind for kind in (list, dict, set, tuple) if isinstance(part, kind)), None)
    return kind is not None and kind.__len__(part) > _LARGE


def _is_closed(kind: type) -> bool:
    return str(_module_of(kind)).partition(".")[0] in _CLOSED and not issubclass(kind, nn.Module)


class _Walk:
    """What has come up, which modules are not looked into, and functions of packages that are still to be looked at.

    What comes up is kept alive as long as the walk, for an object's place in memory stands for it.
    """

    def __init__(self) -> None:
        self.packages: list[tuple[CodeType, Mapping[str, Any]]] = []
        self.looked_at: dict[int, CodeType] = {}
        self._alive: list[Any] = []
        self._seen: set[int] = set()
        self._shut: dict[str, bool] = {}

    def instances(self, roots: Iterable[Any], kinds: tuple[type, ...]) -> list[Any]:
        """Walk on from some objects; return the instances of some classes."""
        instances = []
        layer = self.new(roots)
        while layer:
            # By type, for a proxy may answer for the class of what it stands for.
            instances += [part for part in layer if issubclass(type(part), kinds)]
            layer = self.new(self.behind(layer))
        return instances

    def named_by_packages(self) -> Iterator[Any]:
        """What the functions of installed packages name that have come up since."""
        packages, self.packages = self.packages, []
        for code, variables in packages:
            yield from self._values(code, variables)

    def new(self, parts: Iterable[Any]) -> list[Any]:
        """Those that did not come up before, but what is not looked into."""
        seen, new = self._seen, []
        for part in parts:
            if id(part) not in seen:
                seen.add(id(part))
                new.append(part)
        self._alive.append(new)
        return [part for part in new if not self._is_left_out(part)]

    def behind(self, parts: Iterable[Any]) -> Iterator[Any]:
        """What some objects refer to."""
        others = []
        for part in parts:
            kind = type(part)
            if kind is FunctionType:
                yield from (part.__closure__, part.__defaults__, part.__kwdefaults__, part.__dict__)
                yield from self._named(part.__code__, part.__globals__)
            elif issubclass(kind, ModuleType | threading.local):  # of this thread's
                yield vars(part)
            else:
                others.append(part)
                if kind is GeneratorType and part.gi_frame is not None:
                    yield from self._named(part.gi_code, part.gi_frame.f_globals)
        # A dictionary of numbers and texts is not tracked, nor are arrays, and may be written to all the same.
        yield from (part for part in gc.get_referents(*others) if gc.is_tracked(part) or type(part) in _UNTRACKED)

    def _named(self, code: CodeType, variables: Mapping[str, Any]) -> Iterator[Any]:
        """What a function names, but of one of an installed package's, which is left for later."""
        if not self._is_shut(str(variables.get("__name__")), code.co_filename):
            if not is_installed(code.co_filename):
                yield from self._values(code, variables)
            elif id(code) not in _looked_at and id(code) not in self.looked_at:
                self.looked_at[id(code)] = code
                self.packages.append((code, variables))

    def _values(self, code: CodeType, variables: Mapping[str, Any]) -> Iterator[Any]:
        """The variables of its file that a function names, and of the modules among them those that it names."""
        names = _names(code)
        for value in _named_by(code, variables):
            if not issubclass(type(value), ModuleType):
                yield value
            elif not self._is_left_out(value):
                held = vars(value)
                yield from (held[attribute] for attribute in names & held.keys())

    def _is_left_out(self, part: Any) -> bool:
        kind = type(part)
        if kind is CodeType or kind is FrameType or kind is logging.Logger:
            return True
        if issubclass(kind, ModuleType):
            return self._is_shut(str(vars(part).get("__name__")), vars(part).get("__file__"))
        if issubclass(kind, type):
            name = str(_module_of(part))
            return self._is_shut(name, getattr(sys.modules.get(name), "__file__", None))
        return False

    def _is_shut(self, name: str, file: str | None) -> bool:
        shut = self._shut.get(name)
        if shut is None:
            shut = self._shut[name] = _is_shut(name, file)
        return shut


def _is_shut(name: str, file: str | None) -> bool:
    if name.partition(".")[0] in _SHUT:
        return True
    return name in sys.builtin_module_names if file is None else not is_foreign(file)


def _names(code: CodeType) -> frozenset[str]:
    """The names and texts in a function's code and in the functions that it defines."""
    known = _known.get(id(code))
    if known is None:
        inner = [_names(part) for part in code.co_consts if isinstance(part, CodeType)]
        texts = [text for text in code.co_consts if isinstance(text, str)]
        known = _known[id(code)] = code, frozenset(code.co_names).union(texts, *inner)
    return known[1]


def _module_of(cls: type) -> object:
    try:
        return _NAME_OF_MODULE(cls)
    except AttributeError:  # a class may be without
        return None
