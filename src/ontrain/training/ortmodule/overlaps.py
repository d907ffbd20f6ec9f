"""Tensors of a call that share memory: a write to one in place is seen in the other, and a graph has two values."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from ontrain.errors import InputError

__all__ = ["refuse_overlaps"]


def refuse_overlaps(tensors: Sequence[torch.Tensor], names: Sequence[str], written: Collection[int]) -> None:
    """Refuse a call that writes to a tensor and has memory of it in another one, too.

    Args:
        tensors: of the call; those that are one object count as one tensor.
        names: of the tensors.
        written: the numbers of those that forward writes to.

    Raises:
        InputError: names both.
    """
    for number in written:
        for name, tensor in zip(names, tensors, strict=False):
            if tensor is not tensors[number] and _overlap(tensors[number], tensor):
                raise InputError(
                    f"forward writes to {names[number]!r} in place, which shares memory with {name!r}",
                    reason="a graph has a value for each of the two, and a write to one is not seen in the other",
                    way_out=f"clone one of them before the call, or let forward write to a clone of {names[number]!r}",
                )


def _overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.layout is not torch.strided or b.layout is not torch.strided or not a.numel() or not b.numel():
        return False
    if a.device != b.device or a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr():
        return False
    if a.element_size() != b.element_size():
        return True
    begin, end = max(a.storage_offset(), b.storage_offset()), min(_end(a), _end(b))
    if begin >= end:
        return False
    marks = torch.zeros(max(_end(a), _end(b)), dtype=torch.bool, device="cpu")
    marks.as_strided(a.shape, a.stride(), a.storage_offset()).fill_(True)
    return bool(marks.as_strided(b.shape, b.stride(), b.storage_offset()).any())


def _end(tensor: torch.Tensor) -> int:
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return int(tensor.storage_offset()) + sum((size - 1) * stride for size, stride in steps) + 1
