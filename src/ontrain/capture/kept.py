"""Tensors that forward leaves in its module for the next call, or for whoever reads them: hidden states, losses.

self.hidden = torch.tanh(self.layer(x) + self.hidden)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ontrain.internals import MODULE_STATE, of

__all__ = ["Kept", "attributes_before", "kept_tensors"]

_CONTAINERS = (list, tuple)


@dataclass(frozen=True)
class Kept:
    """A tensor, or several, under a name of a submodule.

    Attributes:
        module: the submodule.
        name: of the attribute or buffer.
        is_buffer: whether it is a buffer, whose values a graph updates.
        differentiable: whether autograd follows it from one call to the next.
        is_output: whether it is one tensor that autograd follows in an attribute: a graph can return it.
    """

    module: nn.Module
    name: str
    is_buffer: bool
    differentiable: bool
    is_output: bool = False


def attributes_before(module: nn.Module) -> list[tuple[nn.Module, dict[str, Any]]]:
    """Return the attributes of each submodule, for `kept_tensors`."""
    return [
        (part, {name: value for name, value in part.__dict__.items() if name not in MODULE_STATE})
        for part in module.modules()
    ]


def kept_tensors(before: list[tuple[nn.Module, dict[str, Any]]]) -> list[Kept]:
    """Return what forward has put into its module, and buffers that it leaves with a gradient, at its end."""
    tensors = []
    for part, attributes in before:
        for name, buffer in of("torch.nn.Module._buffers", part).items():
            if buffer is not None and buffer.requires_grad:
                tensors.append(Kept(part, name, is_buffer=True, differentiable=True))
        tensors += _attributes(part, attributes)
    return tensors


def _attributes(part: nn.Module, before: Mapping[str, Any]) -> Iterator[Kept]:
    for name, now in part.__dict__.items():
        was = before.get(name)
        if name in MODULE_STATE or now is was:
            continue
        old = {id(tensor) for tensor in _tensors_in(was)}
        new = [tensor for tensor in _tensors_in(now) if id(tensor) not in old]
        if new:
            differentiable = any(tensor.requires_grad for tensor in new)
            is_output = differentiable and isinstance(now, torch.Tensor)
            yield Kept(part, name, is_buffer=False, differentiable=differentiable, is_output=is_output)


def _tensors_in(value: Any) -> list[torch.Tensor]:
    """A tensor, or those in lists and tuples."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for item in value for tensor in _tensors_in(item)] if type(value) in _CONTAINERS else []
