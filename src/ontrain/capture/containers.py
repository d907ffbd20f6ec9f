"""Parameters and buffers that a module holds a second time, in a dictionary, list or tuple among its attributes.

    self.weights = {"w": nn.Parameter(torch.ones(3))}
    self.register_parameter("w", self.weights["w"])

A trace puts other tensors in the place of registered ones. What it finds in a container is the parameter itself, which
it takes for a constant: the graph would keep the value of the capture, and the parameter would have no gradient.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from ontrain.internals import MODULE_HOOKS, MODULE_STATE

__all__ = ["Containers"]

_TYPES = (dict, OrderedDict, list, tuple)


class Containers:
    """The containers of a module that hold registered tensors.

    Args:
        module: with its own tensors, before a trace.

    Attributes:
        originals: the module's own, by the place in memory of those that stand for them.
    """

    def __init__(self, module: nn.Module) -> None:
        self.originals: dict[int, Any] = {}
        self._owners: dict[int, Callable[[], torch.Tensor]] = {}
        for submodule in module.modules():
            for registered in (submodule.named_parameters, submodule.named_buffers):
                for name, tensor in registered(recurse=False, remove_duplicate=False):
                    self._owners.setdefault(id(tensor), _entry(submodule, name))
        self._attributes = [
            (submodule, name, value)
            for submodule in module.modules()
            for name, value in submodule.__dict__.items()
            if name not in (*MODULE_STATE, *MODULE_HOOKS) and self._holds(value)
        ]

    def refer_to_traced(self) -> None:
        """Give the module containers of the tensors that are registered now; the caller takes them back afterwards."""
        self.originals.clear()
        for submodule, name, value in self._attributes:
            submodule.__dict__[name] = self._traced(value)

    def _holds(self, value: Any, *outer: Any) -> bool:
        if type(value) not in _TYPES:
            return isinstance(value, torch.Tensor) and id(value) in self._owners
        if any(value is container for container in outer):
            return False
        return any(self._holds(item, value, *outer) for item in _items(value))

    def _traced(self, value: Any, *outer: Any) -> Any:
        if not self._holds(value, *outer):
            return value
        if isinstance(value, torch.Tensor):
            return self._owners[id(value)]()
        if isinstance(value, dict):
            traced = copy.copy(value)
            traced.update((key, self._traced(item, value, *outer)) for key, item in value.items())
        else:
            traced = type(value)(self._traced(item, value, *outer) for item in value)
        self.originals[id(traced)] = value
        return traced


def _items(container: Any) -> Iterable[Any]:
    return container.values() if isinstance(container, dict) else container


def _entry(module: nn.Module, name: str) -> Callable[[], torch.Tensor]:
    return lambda: getattr(module, name)
