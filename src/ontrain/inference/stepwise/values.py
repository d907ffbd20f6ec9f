"""What flows between regions and steps: tensors, strings, sequences, maps, and None for an empty optional value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from ontrain.capture import NARROW, to_array, to_tensor
from ontrain.errors import InputError

__all__ = ["Array", "Items", "Value", "as_array", "as_value", "is_text", "owned", "storage"]

Array = np.ndarray[Any, Any]
Value = Any
"""A `torch.Tensor`; an array of strings, or of a dtype that torch lacks; `Items`; a map or a list of maps; None."""


class Items:
    """A sequence that never changes. What is made of it by an item more at its end shares its memory.

    A loop that appends an item in each round so takes time for the items, and not for their square.
    """

    def __init__(self, items: Iterable[Value] = ()) -> None:
        self._items = list(items)
        self._length = len(self._items)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Value]:
        return (self._items[i] for i in range(self._length))

    def __getitem__(self, at: int) -> Value:
        """Return an item; from -1 on it is counted from the end.

        Raises:
            IndexError: there is none.
        """
        return self._items[self._place(at, self._length - 1)]

    def inserted(self, at: int, item: Value) -> Items:
        """Return the sequence with an item more, before the one at `at`."""
        at = self._place(at, self._length)
        if at == self._length == len(self._items):
            longer = Items()
            longer._items, longer._length = self._items, self._length + 1
            self._items.append(item)
            return longer
        items = list(self)
        items.insert(at, item)
        return Items(items)

    def erased(self, at: int) -> Items:
        """Return the sequence without the item at `at`."""
        items = list(self)
        del items[self._place(at, self._length - 1)]
        return Items(items)

    def _place(self, at: int, last: int) -> int:
        place = at + self._length if at < 0 else at
        if not 0 <= place <= last:
            raise IndexError(f"position {at} of a sequence of {self._length}")
        return place


def is_text(value: Value) -> bool:
    """Whether a value is an array of strings."""
    return isinstance(value, np.ndarray) and value.dtype.kind in "OUS"


def as_array(value: Value) -> Any:
    """Return what numpy computes with: arrays for tensors, lists for sequences."""
    if isinstance(value, torch.Tensor):
        return to_array(value)
    if isinstance(value, Items):
        return [as_array(item) for item in value]
    return value


def as_value(result: Any, device: torch.device) -> Value:
    """Return what numpy has computed as a value; what torch has no dtype for stays an array."""
    if isinstance(result, list):
        if all(isinstance(item, dict) for item in result) and result:
            return result
        return Items(as_value(item, device) for item in result)
    if isinstance(result, dict) or result is None:
        return result
    array = np.asarray(result)
    if array.dtype.kind in "OUS":
        return array.astype(object)
    if array.dtype.isbuiltin == 2 and ir.DataType.from_numpy(array.dtype) in NARROW:
        return array
    try:
        return to_tensor(array).to(device)
    except InputError:
        return array


def storage(tensor: torch.Tensor) -> int:
    """Return where the memory of a tensor begins, that of the one included that it is a view of."""
    return tensor.untyped_storage().data_ptr()


def owned(value: Value, taken: set[int]) -> Value:
    """Return a value for a caller: lists for sequences, and tensors in memory that nothing else has.

    Args:
        value: as steps compute it.
        taken: where memory begins that is others'; that of the result is added.
    """
    if isinstance(value, Items):
        return [owned(item, taken) for item in value]
    if isinstance(value, torch.Tensor):
        value = value.clone(memory_format=torch.contiguous_format) if storage(value) in taken else value.contiguous()
        taken.add(storage(value))
    return value
