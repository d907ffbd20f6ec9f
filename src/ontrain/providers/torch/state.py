"""Resident tensors in flat buffers: one per kind, optimizer group and dtype."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from ontrain.graph import StateKind
from ontrain.internals import tensor_of
from ontrain.providers.base import Array, FlatKey, StateSpec
from ontrain.providers.torch.buffers import torch_dtype
from ontrain.providers.torch.norms import norm
from ontrain.providers.torch.weights import Weights

__all__ = ["ALIGN", "TorchState"]

ALIGN = 64
"""Bytes to which tensors in flat buffers and the arena are aligned: a cache line, and a full AVX-512 register."""
_LARGE = 1 << 20
"""Bytes of a buffer that is not filled where it may be had as zeros."""


class TorchState:
    """Parameters, buffers, moments and gradient accumulators as views of flat tensors.

    Tensors of one kind lie in the order of their specs with equal gaps, so kinds with the same shapes (a parameter,
    its gradient and its moments) line up element by element and an optimizer can walk them as one. Gaps hold zeros.

    Attributes:
        weights: constants as oneDNN reads them.
    """

    def __init__(self, specs: Sequence[StateSpec], device: torch.device) -> None:
        self.device = device
        self.flat: dict[FlatKey, torch.Tensor] = {}
        self.place: dict[str, tuple[FlatKey, int]] = {}
        self._tensors: dict[str, torch.Tensor] = {}
        self._parts: set[str] = set()
        self.weights = Weights()
        self.extend(specs)

    def extend(self, specs: Sequence[StateSpec], parts: int = 1) -> None:
        """Add tensors of kinds that are not there yet; see `ontrain.providers.base.FlatState`."""
        sizes: dict[FlatKey, int] = {}
        for spec in specs:
            dtype = torch_dtype(spec.dtype)
            key: tuple[str, int, torch.dtype] = (spec.kind, spec.group, dtype)
            assert key not in self.flat, f"{spec.name} is of a kind that is laid out already"
            self.place[spec.name] = (key, sizes.get(key, 0))
            sizes[key] = sizes.get(key, 0) + padded(spec.shape, dtype)
        for key, size in sizes.items():
            whole = padded((-(-size // parts),), key[2]) * parts if parts > 1 else size
            self.flat[key] = _zeros(whole, key[2], self.device)
        for spec in specs:
            key, start = self.place[spec.name]
            count = _numel(spec.shape)
            self._tensors[spec.name] = self.flat[key][start : start + count].view(spec.shape)

    def part(self, name: str, of: str, start: int, stop: int) -> None:
        """Let `name` be a stretch of the tensor `of`; see `ontrain.providers.base.FlatState`."""
        key, first = self.place[of]
        self._parts.add(name)
        self.place[name] = (key, first + start)
        self._tensors[name] = self.flat[key][first + start : first + stop]

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._tensors[name]

    def __setitem__(self, name: str, value: Array) -> None:
        with torch.no_grad():
            self._tensors[name].copy_(tensor_of(value))

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._tensors if name not in self._parts)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def is_constant(self, name: str) -> bool:
        """Return whether a tensor never changes once plans are made."""
        return name in self.place and self.place[name][0][0] == StateKind.CONSTANT

    @property
    def is_all_constant(self) -> bool:
        """Whether no tensor changes: plans only serve."""
        return all(map(self.is_constant, self.place))

    def norm(self, name: str) -> torch.Tensor:
        """Return the norm of a tensor; see `ontrain.providers.FlatState`."""
        return norm(self._tensors[name])

    def nbytes(self) -> int:
        """Bytes of all flat buffers."""
        return sum(flat.nbytes for flat in self.flat.values())

    def gradient(self, name: str) -> torch.Tensor:
        """Return the place of a parameter's gradient: a flat buffer laid out like the parameter's own."""
        key, start = self.place[name]
        twin = (StateKind.GRADIENT, *key[1:])
        if twin not in self.flat:
            self.flat[twin] = torch.zeros_like(self.flat[key])
        tensor = self._tensors[name]
        return self.flat[twin][start : start + tensor.numel()].view(tensor.shape)


def _zeros(count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros; on a CPU large ones are pages that the system gives as zeros when they are first used."""
    if device.type != "cpu" or count * dtype.itemsize < _LARGE:
        return torch.zeros(count, dtype=dtype, device=device)
    pages = np.zeros(count * dtype.itemsize + ALIGN, np.uint8)
    start = -pages.ctypes.data % ALIGN
    return torch.from_numpy(pages[start : start + count * dtype.itemsize]).view(dtype)


def padded(shape: Sequence[int], dtype: torch.dtype) -> int:
    """Elements that a tensor takes in a flat buffer."""
    step = max(1, ALIGN // dtype.itemsize)
    return -(-_numel(shape) // step) * step


def _numel(shape: Sequence[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
