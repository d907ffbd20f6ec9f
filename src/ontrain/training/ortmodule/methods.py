"""Which of a module's methods call the module itself, so that they have to call the graph in its place."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
import types
import warnings
from collections.abc import Sequence
from typing import Any

from torch import nn

from ontrain.capture import is_installed

__all__ = ["rebound"]

_LIBRARIES = ("torch", "transformers")
_ASKING = frozenset(
    {"delattr", "dir", "getattr", "hasattr", "id", "isinstance", "repr", "setattr", "str", "super", "type", "vars"}
)


def rebound(value: object, wrapped: nn.Module, wrapper: nn.Module) -> Any:
    """Return an attribute of a wrapped module; a method that calls `self(...)` is bound to the wrapper.

    Methods that torch and transformers bring along, `generate` among them, stay the wrapped module's.

    Warns:
        UserWarning: once, of a method of the user's that calls submodules only, for which there is no graph.
    """
    if not isinstance(value, types.MethodType) or value.__self__ is not wrapped:
        return value
    kind: Any = type(wrapped)
    if _calls_itself(kind, value.__func__):
        return types.MethodType(value.__func__, wrapper)
    _warn_of_parts(kind, value.__func__, frozenset(name for name, _ in wrapped.named_children()))
    return value


@functools.cache
def _calls_itself(kind: type, function: object) -> bool:
    return _reaches(kind, function, set())


@functools.cache
def _warn_of_parts(kind: type, function: Any, parts: frozenset[str]) -> None:
    if not isinstance(function, types.FunctionType) or _is_of_library(function):
        return
    function = inspect.unwrap(function)
    tree = _tree(function)
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)] if tree is not None else []
    own = function.__code__.co_varnames[:1]
    called = [
        node.attr
        for node in calls
        if isinstance(node, ast.Attribute) and _is_self(node.value, own) and node.attr in parts
    ]
    if called:
        warnings.warn(
            f"{function.__name__} of {kind.__name__} calls self.{called[0]}(...) and never self(...): that part runs "
            "as plain PyTorch, for the graph is of forward; move it to forward and call self(...)",
            stacklevel=4,
        )


def _is_of_library(function: types.FunctionType) -> bool:
    return function.__module__.split(".")[0] in _LIBRARIES


def _tree(function: types.FunctionType) -> ast.AST | None:
    """A function's source, parsed; None where it is nowhere, as of what was typed at a prompt."""
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError):
        return None


def _reaches(kind: type, function: Any, seen: set[Any]) -> bool:
    """Whether a method calls `self(...)` or `self.forward(...)`, hands itself to what may, or calls another of the
    class's methods that does.
    """
    if not isinstance(function, types.FunctionType) or function in seen:
        return False
    if _is_of_library(function):
        return False
    seen.add(function)
    function = inspect.unwrap(function)
    tree = _tree(function)
    if tree is None:
        return True
    own = function.__code__.co_varnames[:1]
    if not is_installed(function.__code__.co_filename) and _hands_itself_on(tree, own):
        return True
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in own:
            return True
        if not isinstance(node, ast.Attribute) or not _is_self(node.value, own):
            continue
        inherited = [vars(base)[node.attr] for base in kind.__mro__ if node.attr in vars(base)]
        if node.attr in ("forward", "__call__") or any(_reaches(kind, base, seen) for base in inherited):
            return True
    return False


def _hands_itself_on(tree: ast.AST, own: Sequence[str]) -> bool:
    """Whether a method returns itself, or gives itself to what may call it: `loss_of(self, batch)`, `map(self, rows)`.

    What Python's own functions ask of an object, such as `getattr(self, name)`, is no call of it. Methods of
    installed packages are not asked this, because they hand the plain module to exporters and compilers.
    """
    asked = [
        node.args[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _ASKING and node.args
    ]
    asked += [node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    names = (node for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load))
    return any(node.id in own and not any(node is other for other in asked) for node in names)


def _is_self(node: ast.expr, own: Sequence[str]) -> bool:
    """Whether an expression is the method's own object, or `super()`."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "super"
    return isinstance(node, ast.Name) and node.id in own
