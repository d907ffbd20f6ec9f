"""Which of a module's methods call the module itself, so that they have to call the graph in its place."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
import types
from collections.abc import Sequence
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
    kind: Any = type(wrapped)
    return types.MethodType(value.__func__, wrapper) if _calls_itself(kind, value.__func__) else value


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
        if not isinstance(node, ast.Attribute) or not _is_self(node.value, own):
            continue
        inherited = [vars(base)[node.attr] for base in kind.__mro__ if node.attr in vars(base)]
        if node.attr in ("forward", "__call__") or any(_reaches(kind, one, seen) for one in inherited):
            return True
    return False


def _is_self(node: ast.expr, own: Sequence[str]) -> bool:
    """Whether an expression is the method's own object, or `super()`."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "super"
    return isinstance(node, ast.Name) and node.id in own
