"""Tensors that forward makes of lists with tensors or sizes in them: torch's tracer has no numbers to put there.

    torch.tensor([x.max(), 1.0])    →   torch.stack([x.max().detach(), torch.full((), 1.0)])

torch.as_tensor of sizes would keep them as they are at the capture, torch.tensor lets them vary.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import Any

import torch

__all__ = ["as_tensor", "new_tensor", "tensor", "varies"]


def tensor(data: Any, *, dtype: torch.dtype | None = None, **options: Any) -> torch.Tensor:
    """Return `torch.tensor`; items of a list that are tensors of one number keep their value, and no gradient."""
    if not isinstance(data, list | tuple) or not any(isinstance(leaf, torch.Tensor) for leaf in _leaves(data)):
        return torch.tensor(data, dtype=dtype, **options)
    return _made(data, dtype, **options)


def as_tensor(data: Any, dtype: torch.dtype | None = None, device: Any = None) -> torch.Tensor:
    """Return `torch.as_tensor`, of a list or size as `tensor` makes it."""
    return _made(data, dtype, device) if varies(data) else torch.as_tensor(data, dtype=dtype, device=device)


def new_tensor(like: torch.Tensor, data: Any, *, dtype: Any = None, device: Any = None, **options: Any) -> torch.Tensor:
    """Return `like.new_tensor(data)`, of a list or size as `tensor` makes it."""
    if varies(data):
        return _made(data, dtype or like.dtype, device or like.device, **options)
    return like.new_tensor(data, dtype=dtype, device=device, **options)


def varies(data: Any) -> bool:
    """Whether data is a size of the trace, or a list with tensors or sizes in it."""
    leaves = _leaves(data) if isinstance(data, list | tuple) else ()
    return isinstance(data, torch.SymInt) or any(isinstance(leaf, torch.Tensor | torch.SymInt) for leaf in leaves)


def _leaves(data: Any) -> Iterator[Any]:
    if not isinstance(data, list | tuple):
        yield data
        return
    for item in data:
        yield from _leaves(item)


def _made(
    data: Any, dtype: torch.dtype | None, device: Any = None, requires_grad: bool = False, **_: Any
) -> torch.Tensor:
    dtype = dtype or reduce(torch.promote_types, map(_dtype, _leaves(data)))
    device = torch.device(device or torch.get_default_device())
    return _stacked(data, dtype, device).requires_grad_(requires_grad)


def _dtype(leaf: Any) -> torch.dtype:
    if isinstance(leaf, torch.SymInt | torch.SymFloat):
        return torch.int64 if isinstance(leaf, torch.SymInt) else torch.get_default_dtype()
    return leaf.dtype if isinstance(leaf, torch.Tensor) else torch.tensor(leaf, device="cpu").dtype


def _stacked(data: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if isinstance(data, list | tuple):
        return torch.stack([_stacked(item, dtype, device) for item in data])
    if isinstance(data, torch.Tensor):
        return data.detach().reshape(()).to(device, dtype)
    return torch.full((), data, dtype=dtype, device=device)
