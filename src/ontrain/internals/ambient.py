"""What a caller has set for all of torch: a default device, other modes that see its functions or operators, hooks.

A plan's calls name their tensors, and are made without the modes. What else ontrain creates names its device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from ontrain.internals.access import available
from ontrain.internals.constants import GLOBAL_HOOKS

__all__ = [
    "dispatch_modes", "function_modes", "global_hooks", "of_torch", "tensor_of", "without_dispatch_modes",
    "without_function_modes", "without_gradients",
]  # fmt: skip

_NOTHING_SET: tuple[str, tuple[type, ...]] = ("cpu", ())


def without_function_modes() -> AbstractContextManager[None]:
    """Return a context in which tensors are made on the CPU unless a device is named, and no mode sees a call.

    Neither do subclasses of tensors that have a `__torch_function__`. It costs 0.3 µs, and makes each call under a
    mode cheaper.
    """
    return _context()()


@functools.cache
def _context() -> Callable[[], AbstractContextManager[None]]:
    return available("torch._C.DisableTorchFunction") or nullcontext


class _Unrecorded:
    """Calls that autograd does not record, in a thread where it records others."""

    __slots__ = ("_enable",)

    def __init__(self, enable: Callable[[bool], None]) -> None:
        self._enable = enable

    def __enter__(self) -> None:
        self._enable(False)

    def __exit__(self, *_: object) -> None:
        self._enable(True)


_as_it_is = nullcontext()


def without_gradients() -> AbstractContextManager[None]:
    """Return what `torch.no_grad()` does, in a third of its time.

    A session enters it in each run, where a call takes a microsecond.
    """
    if not torch.is_grad_enabled():
        return _as_it_is
    enable = available("torch._C._set_grad_enabled")
    return torch.no_grad() if enable is None else _Unrecorded(enable)


def function_modes() -> tuple[str, tuple[type, ...]]:
    """Return the default device of this thread, and the types of other modes that see torch's functions."""
    length = available("torch._C._len_torch_function_stack")
    if length is not None and not length():
        return _NOTHING_SET
    stack = available("torch.overrides._get_current_function_mode_stack")
    default = available("torch.utils._device.DeviceContext")
    modes = [] if stack is None else [type(mode) for mode in stack()]
    return str(torch.get_default_device()), tuple([mode for mode in modes if mode is not default])


def tensor_of(value: Any) -> torch.Tensor:
    """Return a tensor as it is, and anything else that torch takes for one as a tensor on the CPU.

    `torch.as_tensor` moves tensors to the default device.
    """
    return value if isinstance(value, torch.Tensor) else torch.as_tensor(value, device="cpu")


def dispatch_modes() -> tuple[type, ...]:
    """Return the types of the modes of this thread that see torch's operators, and are not torch's own.

    Torch's own, such as FlopCounterMode, count and record.
    """
    length = available("torch._C._len_torch_dispatch_stack")
    if length is not None and not length():
        return ()
    stack = available("torch.utils._python_dispatch._get_current_dispatch_mode_stack")
    return () if stack is None else tuple([type(mode) for mode in stack() if not of_torch(type(mode))])


def without_dispatch_modes() -> AbstractContextManager[Any]:
    """Return a context in which no mode sees operators."""
    context = available("torch.utils._python_dispatch._disable_current_modes")
    return nullcontext() if context is None else context()


def global_hooks() -> tuple[list[Any], list[Any]]:
    """Return the forward hooks and the backward hooks of all modules; without those of torch's own, which only look."""
    tables = [available(f"torch.nn.modules.module.{name}") for name in GLOBAL_HOOKS]
    forward, forward_pre, backward, backward_pre = (
        [hook for hook in table.values() if not of_torch(hook)] if table else [] for table in tables
    )
    return [*forward_pre, *forward], [*backward_pre, *backward]


def of_torch(function: Any) -> bool:
    """Whether a function, method or class is torch's own."""
    return str(getattr(function, "__module__", "")).partition(".")[0] == "torch"
