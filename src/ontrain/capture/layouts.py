"""What forward may see of a call's tensors beside their values: how they lie in memory, and which are one tensor."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

__all__ = ["LAYOUT", "STRIDES", "layout", "parameters_among", "repeated"]

STRIDES = frozenset({"as_strided", "stride"})
"""Names of tensors' methods that compute with how far apart numbers lie in memory."""
LAYOUT = STRIDES | {"is_contiguous"}
"""Names of tensors' methods that tell in which order numbers lie in memory."""


def layout(tensor: torch.Tensor, *, exact: bool = False) -> object:
    """Return in which order a tensor's dimensions lie in memory, None if it is contiguous: sizes do not matter.

    Args:
        tensor: of a call.
        exact: whether to return the strides where they do not follow from the sizes and the order.
    """
    if tensor.layout is not torch.strided or tensor.is_contiguous():
        return None
    if tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
        return torch.channels_last
    order = sorted(range(tensor.ndim), key=tensor.stride, reverse=True)
    if exact and not tensor.permute(order).is_contiguous():
        return tensor.stride()
    return tuple(order)


def repeated(tensors: Sequence[torch.Tensor]) -> tuple[int, ...] | None:
    """Return for each tensor where it comes first among them; None if they are all different ones."""
    if len(set(map(id, tensors))) == len(tensors):  # asked at each call
        return None
    places = {id(tensor): place for place, tensor in reversed([*enumerate(tensors)])}
    return tuple([places[id(tensor)] for tensor in tensors])


def parameters_among(tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """Return the numbers of the tensors that are an `nn.Parameter`."""
    return tuple([number for number, tensor in enumerate(tensors) if isinstance(tensor, nn.Parameter)])
