"""Methods of a wrapped module's class that its wrapper would hide.

Python looks for special methods, such as `__iter__`, in the class of an object. What `nn.Module` brings along, such as
`to` and `parameters`, a wrapper has from `nn.Module` itself, where the module's class may have its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from ontrain.training.ortmodule.methods import rebound

__all__ = ["with_special_methods"]

_ARITHMETIC = (
    "add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift",
)  # fmt: skip
_NAMES = (
    "__iter__", "__contains__", "__delitem__", "__reversed__", "__enter__", "__exit__", "__str__", "__int__",
    "__float__", "__index__", "__neg__", "__invert__", "__lt__", "__le__", "__gt__", "__ge__",
    *(f"__{side}{name}__" for name in _ARITHMETIC for side in ("", "r", "i")),
)  # fmt: skip
# Hooks are registered on the wrapper.
_OF_MODULES = frozenset(
    name
    for name, value in vars(nn.Module).items()
    if callable(value) and not name.startswith("_") and "hook" not in name
)

_classes: dict[tuple[type, type], type] = {}


def with_special_methods(wrapper: type, kind: type) -> type:
    """Return the class of a wrapper of modules of a class: one that has this class's own methods, too.

    These are its special methods, and those that it has in place of `nn.Module`'s.

    Args:
        wrapper: has the module as its attribute `module`. The class itself, if it needs none.
        kind: of the module.
    """
    if (wrapper, kind) not in _classes:
        _classes[wrapper, kind] = _class_for(wrapper, kind)
    return _classes[wrapper, kind]


def _class_for(wrapper: type, kind: type) -> type:
    own = {name for base in kind.__mro__ if base not in (nn.Module, object) for name in vars(base)}
    methods = {name: _method(name) for name in _NAMES if name in own}
    methods |= {name: _own_way(name) for name in sorted(_OF_MODULES & own - vars(wrapper).keys())}
    if not issubclass(kind, nn.Module) or not methods:
        return wrapper
    return type(wrapper.__name__, (wrapper,), {**methods, "__module__": wrapper.__module__, "__doc__": wrapper.__doc__})


def _method(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any) -> Any:
        result = getattr(type(self.module), name)(self.module, *args)
        return self if result is self.module else result

    method.__name__ = name
    return method


def _own_way(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = rebound(getattr(self.module, name), self.module, self)(*args, **kwargs)
        return self if result is self.module else result

    method.__name__ = name
    return method
