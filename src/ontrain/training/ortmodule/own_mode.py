"""Whether a forward records gradients for itself, whatever holds where it is called."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["FOLLOWED", "MODES", "enables_gradients"]

MODES = frozenset({"enable_grad", "set_grad_enabled"})
"""Names of what has gradients recorded in a part of forward, also where it is called under `torch.no_grad`."""

FOLLOWED = frozenset({"grad_fn", "is_leaf", "requires_grad"})
"""Names of tensors' attributes that tell whether autograd follows them."""


def enables_gradients(forward: Callable[..., Any]) -> bool:
    """Return whether a decorator of forward has gradients recorded: `@torch.enable_grad()`. The innermost counts."""
    function, enables = getattr(forward, "__func__", forward), False
    while inspect.isfunction(function) and hasattr(function, "__wrapped__"):
        # torch's decorator makes a new context manager for each call, by a method of the one that it was given.
        manager = getattr(inspect.getclosurevars(function).nonlocals.get("ctx_factory"), "__self__", None)
        if isinstance(manager, torch.enable_grad | torch.no_grad):
            enables = isinstance(manager, torch.enable_grad)
        elif isinstance(manager, torch.set_grad_enabled):
            enables = manager.mode
        function = function.__wrapped__
    return enables
