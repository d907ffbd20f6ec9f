"""Tensors that forward leaves in its module for the next call, or for whoever reads them: hidden states, losses.

self.hidden = torch.tanh(self.layer(x) + self.hidden)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ontrain.capture.structure import Spec, flatten, unflatten
from ontrain.internals import MODULE_STATE, of

__all__ = ["Kept", "attributes_before", "kept_tensors"]

_CONTAINERS = (list, tuple, dict)


@dataclass(frozen=True)
class Kept:
    """A tensor, or several, under a name of a submodule.

    Attributes:
        module: the submodule.
        name: of the attribute or buffer.
        is_buffer: whether it is a buffer, whose values a graph updates.
        differentiable: whether autograd follows it from one call to the next.
        spec: of the attribute's value where a graph can return it: of one tensor, or of a list, tuple or dictionary
            that forward made, of tensors alone.
        grows: whether it is a list that forward adds tensors to, which a graph leaves as it is.
    """

    module: nn.Module
    name: str
    is_buffer: bool
    differentiable: bool
    spec: Spec | None = field(default=None, compare=False)
    grows: bool = False

    @property
    def is_output(self) -> bool:
        """Whether a graph can return it."""
        return self.spec is not None

    def tensors(self) -> list[torch.Tensor]:
        """Return the tensors that are there now, in the order of `spec`."""
        return flatten(getattr(self.module, self.name))[0]

    def set(self, tensors: Sequence[torch.Tensor]) -> None:
        """Set the attribute to a value of these tensors."""
        assert self.spec is not None
        self.module.__dict__[self.name] = unflatten(self.spec, tensors)


Before = list[tuple[nn.Module, dict[str, tuple[Any, int]]]]
"""Of each submodule the attributes, and how many tensors a list among them had."""


def attributes_before(module: nn.Module) -> Before:
    """Return the attributes of each submodule, for `kept_tensors`."""
    return [
        (part, {n: (value, _length(value)) for n, value in part.__dict__.items() if n not in MODULE_STATE})
        for part in module.modules()
    ]


def _length(value: Any) -> int:
    return sum(isinstance(item, torch.Tensor) for item in value) if type(value) is list else 0


def kept_tensors(before: Before) -> list[Kept]:
    """Return what forward has put into its module, and buffers that it leaves with a gradient, at its end."""
    tensors = []
    for part, attributes in before:
        for name, buffer in of("torch.nn.Module._buffers", part).items():
            if buffer is not None and buffer.requires_grad:
                tensors.append(Kept(part, name, is_buffer=True, differentiable=True))
        tensors += _attributes(part, attributes)
    return tensors


def _attributes(part: nn.Module, before: Mapping[str, tuple[Any, int]]) -> Iterator[Kept]:
    for name, now in part.__dict__.items():
        was, length = before.get(name, (None, 0))
        if now is was and _length(now) > length:
            yield Kept(part, name, is_buffer=False, differentiable=False, grows=True)
        if name in MODULE_STATE or now is was:
            continue
        old = {id(tensor) for tensor in _tensors_in(was)}
        new = [tensor for tensor in _tensors_in(now) if id(tensor) not in old]
        if new:
            differentiable = any(tensor.requires_grad for tensor in new)
            yield Kept(part, name, is_buffer=False, differentiable=differentiable, spec=_spec(now))


def _spec(value: Any) -> Spec | None:
    """The structure of a tensor, or of a container of tensors that a graph can return."""
    tensors, spec = flatten(value)
    plain = len(tensors) == _leaves(spec) and all(t.layout is torch.strided and not t.is_complex() for t in tensors)
    return spec if plain else None


def _leaves(spec: Spec) -> int:
    return sum(map(_leaves, spec.children)) if spec.children else 1


def _tensors_in(value: Any) -> list[torch.Tensor]:
    """A tensor, or those in lists, tuples and dictionaries."""
    if isinstance(value, torch.Tensor):
        return [value]
    items = value.values() if type(value) is dict else value if type(value) in _CONTAINERS else ()
    return [tensor for item in items for tensor in _tensors_in(item)]
