"""Which of a module's methods call the module itself, so that they have to call the graph in its place."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
import types
from typing import Any

from torch import nn

__all__ = ["rebound"]

_LIBRARIES = ("torch", "transformers")


def rebound(value: Any, wrapped: nn.Module, wrapper: nn.Module) -> Any:
    """Return an attribute of a wrapped module; a method that calls `self(...)` is bound to the wrapper.

    Methods that torch and transformers bring along, `generate` among them, stay the wrapped module's.
    """
    if not isinstance(value, types.MethodType) or value.__self__ is not wrapped:
        return value
    return types.MethodType(value.__func__, wrapper) if _calls_itself(type(wrapped), value.__func__) else value


@functools.cache
def _calls_itself(kind: type, function: Any) -> bool:
    return _reaches(kind, function, set())


def _reaches(kind: type, function: Any, seen: set[Any]) -> bool:
    """Whether a method calls `self(...)` or `self.forward(...)`, or another of the class's methods that does."""
    if not isinstance(function, types.FunctionType) or function in seen:
        return False
    if function.__module__.split(".")[0] in _LIBRARIES:
        return False
    seen.add(function)
    function = inspect.unwrap(function)
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError):  # typed at a prompt: its source is nowhere
        return True
    own = function.__code__.co_varnames[:1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in own:
            return True
        if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in own):
            continue
        if node.attr in ("forward", "__call__") or _reaches(kind, getattr(kind, node.attr, None), seen):
            return True
    return False
