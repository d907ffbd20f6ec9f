"""Sequences and optional values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from ontrain.errors import ProviderError
from ontrain.inference.stepwise.kernels.registry import Call, kernel
from ontrain.inference.stepwise.values import Items, Value, is_text

__all__: list[str] = []


@kernel("SequenceConstruct", text=True)
def _construct(call: Call) -> list[Value]:
    return [Items(call.inputs)]


@kernel("SequenceEmpty", text=True)
def _empty(call: Call) -> list[Value]:
    return [Items()]


@kernel("SequenceAt", text=True)
def _at(call: Call) -> list[Value]:
    return [call.inputs[0][call.number(1)]]


@kernel("SequenceInsert", text=True)
def _insert(call: Call) -> list[Value]:
    items = call.inputs[0]
    return [items.inserted(call.number(2, len(items)), call.inputs[1])]


@kernel("SequenceErase", text=True)
def _erase(call: Call) -> list[Value]:
    return [call.inputs[0].erased(call.number(1, -1))]


@kernel("SequenceLength", text=True)
def _length(call: Call) -> list[Value]:
    return [torch.tensor(len(call.inputs[0]), device=call.device)]


@kernel("ConcatFromSequence", text=True)
def _concat(call: Call) -> list[Value]:
    items, axis, stacks = list(call.inputs[0]), call.attributes["axis"], call.attributes.get("new_axis", 0)
    if not items:
        raise ProviderError("the sequence is empty")
    if is_text(items[0]):
        return [(np.stack if stacks else np.concatenate)(items, axis)]
    return [(torch.stack if stacks else torch.cat)(items, axis)]


@kernel("SplitToSequence", text=True)
def _split(call: Call) -> list[Value]:
    x, axis, split = call.inputs[0], call.attributes.get("axis", 0), call.input(1)
    total = x.shape[axis]
    if split is None:
        sizes = [1] * total
    elif split.ndim:
        sizes = [int(size) for size in split.tolist()]
    else:
        size = int(split)
        if size < 1:
            raise ProviderError(f"parts of {size} rows")
        sizes = [min(size, total - start) for start in range(0, total, size)]
    if sum(sizes) != total or min(sizes, default=0) < 0:
        raise ProviderError(f"parts of {sizes} rows do not make up {total}")
    pieces: Iterable[Any] = np.split(x, np.cumsum(sizes)[:-1], axis) if is_text(x) else torch.split(x, sizes, axis)
    if split is None and not call.attributes.get("keepdims", 1):
        pieces = [piece.squeeze(axis) for piece in pieces]
    return [Items(pieces)]


@kernel("Identity", text=True, always=False)
def _identity(call: Call) -> list[Value]:
    return [call.inputs[0]]


@kernel("Optional", text=True)
def _optional(call: Call) -> list[Value]:
    return [call.input(0)]


@kernel("OptionalHasElement", text=True)
def _has_element(call: Call) -> list[Value]:
    return [torch.tensor(call.input(0) is not None, device=call.device)]


@kernel("OptionalGetElement", text=True)
def _get_element(call: Call) -> list[Value]:
    if call.input(0) is None:
        raise ProviderError("the optional value is empty")
    return [call.inputs[0]]
