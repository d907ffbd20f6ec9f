"""The objects that Python code can come to from some objects and from the variables of modules."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

from ontrain.capture.source import is_foreign

__all__ = ["reachable"]

_SHUT = frozenset({"mpmath", "numpy", "onnx", "onnx_ir", "onnxruntime", "sympy", "torch"})
"""Packages that are not looked into, beside Python's own and ours: they hold nothing of a user's."""
_NAME_OF_MODULE = vars(type)["__module__"].__get__


def reachable(roots: Iterable[Any]) -> Iterator[Any]:
    """Yield what the garbage collector sees behind `roots` and behind the variables of all loaded modules, each once.

    Each step goes from an object to those that it refers to. So nothing comes up that another thread is just making,
    as it does in `gc.get_objects`: a reference to a tuple that is not complete makes its construction fail. Modules
    and classes of Python itself, of torch, numpy, sympy, onnx and ontrain are left out; their instances are not.

    What comes up is kept alive until the end, for an object's place in memory stands for it.
    """
    modules = {name: module for name, module in list(sys.modules.items()) if isinstance(module, ModuleType)}
    shut = {name for name, module in modules.items() if _is_shut(name, vars(module).get("__file__"))}
    layer = [*roots, *(module for name, module in modules.items() if name not in shut)]
    seen = {id(part) for name in shut for part in (modules[name], vars(modules[name]))} | {id(root) for root in layer}
    alive: list[Any] = [modules]
    while layer:
        yield from layer
        alive.append(layer)
        following = []
        for referent in filter(gc.is_tracked, gc.get_referents(*layer)):
            if id(referent) not in seen:
                seen.add(id(referent))
                following.append(referent)
        layer = [part for part in following if not (issubclass(type(part), type) and _module_of(part) in shut)]
        alive.append(following)


def _is_shut(name: str, file: str | None) -> bool:
    if name.partition(".")[0] in _SHUT:
        return True
    return name in sys.builtin_module_names if file is None else not is_foreign(file)


def _module_of(cls: type) -> object:
    try:
        return _NAME_OF_MODULE(cls)
    except AttributeError:  # a class may be without
        return None
