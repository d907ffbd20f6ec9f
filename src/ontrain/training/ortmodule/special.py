"""Special methods of a wrapped module's class, such as `__iter__`: Python looks for them in the class of an object."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

__all__ = ["with_special_methods"]

_ARITHMETIC = (
    "add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift",
)  # fmt: skip
_NAMES = (
    "__iter__", "__contains__", "__delitem__", "__reversed__", "__enter__", "__exit__", "__str__", "__int__",
    "__float__", "__index__", "__neg__", "__invert__", "__lt__", "__le__", "__gt__", "__ge__",
    *(f"__{side}{name}__" for name in _ARITHMETIC for side in ("", "r", "i")),
)  # fmt: skip


_classes: dict[tuple[type, type], type] = {}


def with_special_methods(wrapper: type, kind: type) -> type:
    """Return the class of a wrapper of modules of a class: one that has the special methods of this class, too.

    Args:
        wrapper: has the module as its attribute `module`. The class itself, if it needs none.
        kind: of the module.
    """
    if (wrapper, kind) not in _classes:
        _classes[wrapper, kind] = _class_for(wrapper, kind)
    return _classes[wrapper, kind]


def _class_for(wrapper: type, kind: type) -> type:
    bases = [base for base in kind.__mro__ if base not in (nn.Module, object)]
    names = [name for name in _NAMES if any(name in vars(base) for base in bases)]
    if not issubclass(kind, nn.Module) or not names:
        return wrapper
    methods = {name: _method(name) for name in names}
    return type(wrapper.__name__, (wrapper,), {**methods, "__module__": wrapper.__module__, "__doc__": wrapper.__doc__})


def _method(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any) -> Any:
        result = getattr(type(self.module), name)(self.module, *args)
        return self if result is self.module else result

    method.__name__ = name
    return method
