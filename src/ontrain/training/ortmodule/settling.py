"""Buffers that a forward makes at its first call, or anew when sizes grow: tables of positions, biases by distance."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ontrain.capture import flatten
from ontrain.internals import of

__all__ = ["settled"]


def settled(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Give a module the buffers that its forward makes of a call, where their shape or dtype is another.

    Copies of the module run the call. All else stays as it is: parameters, statistics, random state.

    Returns:
        whether there are such buffers, and forward returns the same with them: they keep what it would compute anew.
    """
    first, formed = _run(module, args, kwargs, [])
    if not formed or any(buffer is not None and buffer.requires_grad for _, buffer in formed):
        return False
    second, again = _run(module, args, kwargs, formed)
    if again or len(first) != len(second) or not all(map(_same, first, second)):
        return False
    buffers = _buffers(module)
    for place, buffer in formed:
        owner, name = buffers[place]
        owner[name] = buffer
    return True


def _run(
    module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], formed: Sequence[tuple[int, torch.Tensor | None]]
) -> tuple[list[torch.Tensor], list[tuple[int, torch.Tensor | None]]]:
    """Call a copy that has some buffers; return the result's tensors, and buffers of another form by their number."""
    double, inputs, named = copy.deepcopy((module, list(map(_plain, args)), {k: _plain(v) for k, v in kwargs.items()}))
    buffers = _buffers(double)
    for place, buffer in formed:
        owner, name = buffers[place]
        owner[name] = None if buffer is None else buffer.clone()
    before = [_form(owner[name]) for owner, name in buffers]
    with torch.random.fork_rng(), torch.enable_grad():
        result = double(*inputs, **named)
    changed = [
        (at, owner.get(name)) for at, (owner, name) in enumerate(buffers) if _form(owner.get(name)) != before[at]
    ]
    return flatten(result)[0], changed


def _buffers(module: nn.Module) -> list[tuple[dict[str, Any], str]]:
    """Where a module has its buffers, in an order that its copies share."""
    owners = [of("torch.nn.Module._buffers", part) for part in module.modules()]
    return [(owner, name) for owner in owners for name in owner]


def _plain(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value


def _form(buffer: torch.Tensor | None) -> tuple[Any, ...] | None:
    return None if buffer is None else (buffer.shape, buffer.dtype)


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a.detach(), b.detach(), rtol=0, atol=0, equal_nan=True)
