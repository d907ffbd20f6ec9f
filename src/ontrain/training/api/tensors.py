"""Arrays that onnxruntime reads and writes in place: two copies of what a step updates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ontrain.errors import InputError
from ontrain.stock import stock

onnxruntime = stock()

__all__ = ["Array", "Tensors", "as_array", "ort_value"]

Array = np.ndarray[Any, Any]


def as_array(what: str, value: object, way_out: str = "give a numpy array") -> Array:
    """Return what numpy takes for an array.

    Raises:
        InputError: rows of unequal length and the like.
    """
    try:
        return np.asarray(value)
    except ValueError as error:
        raise InputError(f"{what} is no array", reason=str(error), way_out=way_out) from error


def ort_value(array: Array) -> Any:
    """Return an OrtValue over the memory of an array."""
    return onnxruntime.OrtValue.ortvalue_from_numpy(array)


class Tensors:
    """Arrays by name, each with an OrtValue over its memory.

    onnxruntime does not promise that an output may lie over the input that it is computed from: a step reads the
    present copy, writes the next one, and `swap` makes it the present one.

    Args:
        arrays: initial values, copied.
    """

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self._present: dict[str, tuple[Array, Any]] = {}
        self._next: dict[str, tuple[Array, Any]] = {}
        for name, array in arrays.items():
            self.add(name, array)

    def __getitem__(self, name: str) -> Array:
        return self._present[name][0]

    def __contains__(self, name: object) -> bool:
        return name in self._present

    def add(self, name: str, array: Array) -> None:
        """Add an array, copied."""
        self._present[name] = _with_value(np.array(array, order="C"))

    def present(self, name: str) -> Any:
        """Return the OrtValue to read."""
        return self._present[name][1]

    def next(self, name: str) -> Any:
        """Return the OrtValue to write."""
        if name not in self._next:
            self._next[name] = _with_value(np.empty_like(self._present[name][0]))
        return self._next[name][1]

    def spare(self, name: str) -> Array:
        """Return the array that was written last through `next`."""
        return self._next[name][0]

    def swap(self, names: Iterable[str]) -> None:
        """Make what was written the present value."""
        for name in names:
            self._present[name], self._next[name] = self._next[name], self._present[name]


def _with_value(array: Array) -> tuple[Array, Any]:
    return array, ort_value(array)
