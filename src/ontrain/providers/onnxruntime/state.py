"""Resident tensors for onnxruntime: two copies of whatever a step updates, swapped once the step has succeeded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ontrain.errors import ProviderError
from ontrain.providers import base
from ontrain.providers.base import StateSpec
from ontrain.stock import stock

if TYPE_CHECKING:
    import onnxruntime
else:
    onnxruntime = stock()

__all__ = ["OrtState"]

Array = npt.NDArray[np.generic]


class _Tensor:
    """An array and the OrtValue over the same memory."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> None:
        self.array: Array = np.zeros(shape, dtype)
        self.value: onnxruntime.OrtValue = onnxruntime.OrtValue.ortvalue_from_numpy(self.array)


class OrtState:
    """Parameters, buffers, moments and gradient accumulators as arrays that onnxruntime reads and writes in place.

    onnxruntime does not promise that an output may lie over the input that it is computed from. A tensor that some
    graph updates therefore has a second copy: the step reads the one, writes the other, and `swap` makes the other
    the present one. What no graph updates is held once.

    Raises:
        ProviderError: a dtype that numpy, and onnxruntime on a CPU, does not know, such as bfloat16.
    """

    def __init__(self, specs: Sequence[StateSpec]) -> None:
        for spec in specs:
            # 2 stands for a dtype that another package has added to numpy.
            if spec.dtype.numpy().isbuiltin != 1:
                raise ProviderError(
                    f"OnnxRuntimeExecutionProvider cannot hold {spec.name!r}",
                    reason=f"onnxruntime has no CPU kernels for {spec.dtype.name.lower()}",
                    way_out="train in float32, or on TorchExecutionProvider",
                )
        self._present = {s.name: _Tensor(s.shape, s.dtype.numpy()) for s in specs}
        self._next: dict[str, _Tensor] = {}

    def __getitem__(self, name: str) -> Array:
        """The present value; valid until the next step that updates it."""
        return self._present[name].array

    def __setitem__(self, name: str, value: base.Array) -> None:
        self._present[name].array[...] = np.asarray(value).reshape(self._present[name].array.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._present)

    def __contains__(self, name: object) -> bool:
        return name in self._present

    def nbytes(self) -> int:
        """Bytes of all copies."""
        return sum(t.array.nbytes for held in (self._present, self._next) for t in held.values())

    def reserve(self, names: Iterable[str]) -> None:
        """Make sure that these tensors have a second copy."""
        for name in names:
            if name not in self._next:
                array = self._present[name].array
                self._next[name] = _Tensor(array.shape, array.dtype)

    def present(self, name: str) -> onnxruntime.OrtValue:
        """Return the OrtValue to read."""
        return self._present[name].value

    def next(self, name: str) -> onnxruntime.OrtValue:
        """Return the OrtValue to write."""
        return self._next[name].value

    def swap(self, names: Iterable[str]) -> None:
        """Make what was written the present value."""
        for name in names:
            self._present[name], self._next[name] = self._next[name], self._present[name]
