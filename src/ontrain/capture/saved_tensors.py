"""Hooks on what autograd saves for backward, around a part of forward: a graph saves what its own backward reads.

with torch.autograd.graph.save_on_cpu():        # the values stay: nothing to do
    y = self.layer(x)
with saved_tensors_hooks(to_half, to_single):   # backward would read other values: refused
    y = self.layer(x)
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from ontrain.capture.source import current_line
from ontrain.capture.ways_out import BROKEN
from ontrain.errors import CaptureError
from ontrain.internals import of_torch

__all__ = ["hooks_on_saved_tensors"]

_SHAPES = ((), (3,), (64, 64))
_DTYPES = (torch.float32, torch.float64, torch.int64)


def hooks_on_saved_tensors(elsewhere: Callable[[], bool]) -> dict[str, Callable[[Any], Any]]:
    """Return what to make of torch's own functions, by name, during one trace.

    Args:
        elsewhere: whether the calling thread is another than the one that traces.
    """
    return {"torch.autograd.graph.saved_tensors_hooks.__enter__": lambda own: _entering(own, elsewhere)}


def _entering(own: Callable[[Any], None], elsewhere: Callable[[], bool]) -> Callable[[Any], None]:
    def enter(hooks: Any) -> None:
        if elsewhere() or (of_torch(type(hooks)) and of_torch(hooks.pack_hook)):
            own(hooks)
            return
        # A thread of its own has none of the modes that the trace is running under.
        with ThreadPoolExecutor(1) as thread:
            keep = thread.submit(_keep_values, hooks.pack_hook, hooks.unpack_hook).result()
        if not keep:
            raise CaptureError(
                "forward has hooks on the tensors that autograd saves, and they change the values",
                source=current_line(),
                reason="a graph's backward reads what its forward has computed, and calls no Python in between",
                way_out="round in forward what backward is to read, with a torch.autograd.Function whose backward is "
                f"the identity; memory_budget= makes a graph save less; or {BROKEN}",
            )
        own(saved_tensors_hooks(_same, _same))

    return enter


def _keep_values(pack: Callable[[torch.Tensor], Any], unpack: Callable[[Any], torch.Tensor]) -> bool:
    """Whether hooks return some tensors as they were."""
    generator = torch.Generator("cpu").manual_seed(0)
    for shape in _SHAPES:
        for dtype in _DTYPES:
            tensor = (torch.randn(shape, device="cpu", generator=generator) * 10).to(dtype)
            try:
                unpacked = unpack(pack(tensor.clone()))
            except Exception:  # noqa: BLE001 - a user's hook may raise anything on a tensor that it does not expect
                return False
            if not _is_same(unpacked, tensor):
                return False
    return True


def _is_same(unpacked: Any, tensor: torch.Tensor) -> bool:
    if not isinstance(unpacked, torch.Tensor) or (unpacked.shape, unpacked.dtype) != (tensor.shape, tensor.dtype):
        return False
    return torch.equal(unpacked.detach().cpu(), tensor)


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor
