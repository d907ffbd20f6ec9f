"""What a capture depends on beside module and call: what a caller has set for all of torch."""

from __future__ import annotations

import types
from collections.abc import Hashable

import torch

from ontrain.internals import dispatch_modes, function_modes, global_hooks
from ontrain.training.ortmodule.key import Same

__all__ = ["surroundings"]

_FUNCTIONS = (types.FunctionType, types.MethodType)


def surroundings() -> tuple[Hashable, ...]:
    """Return autocast, default dtype and device, modes that see functions or operators, and hooks of all modules."""
    return _autocast(), torch.get_default_dtype(), function_modes(), dispatch_modes(), _hooks()


def _autocast() -> tuple[tuple[str, torch.dtype], ...]:
    """The device types and dtypes that autocast is on for."""
    return tuple(
        [(kind, torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    )


def _hooks() -> tuple[Hashable, ...]:
    forward, backward = global_hooks()
    return tuple([hook if type(hook) in _FUNCTIONS else Same(hook) for hook in (*forward, *backward)])
