"""Parameters and buffers that stay the user's own, and memory of the gradients that a user keeps."""

from __future__ import annotations

import sys
from collections.abc import ItemsView, Mapping

import numpy as np
import numpy.typing as npt
import torch

from ontrain.locks import Lock
from ontrain.providers.torch.buffers import Buf, Storage
from ontrain.providers.torch.state import ALIGN

__all__ = ["GradientSet", "Gradients", "Residents"]

_ELSEWHERE = torch.empty(0, device="cpu")
_NUMPY = {torch.float32: np.float32, torch.float64: np.float64, torch.float16: np.float16}


class Residents:
    """Parameters and buffers that stay the user's own: plans hold places, and a place follows when memory is replaced.

    Args:
        tensors: by graph input name. Their memory is used as it is, strided views included.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._bufs: dict[str, Buf] = {}
        self._gradients: dict[str, Buf] = {}
        self.version = 0
        for name, tensor in tensors.items():
            start = int(tensor.storage_offset()) * tensor.element_size()
            storage = Storage(tensor.untyped_storage().nbytes() - start, tensor.detach(), offset=start)
            meta = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
            self._bufs[name] = Buf(storage, meta)

    def __getitem__(self, name: str) -> Buf:
        return self._bufs[name]

    def __contains__(self, name: object) -> bool:
        return name in self._bufs

    def items(self) -> ItemsView[str, Buf]:
        """Return names and places."""
        return self._bufs.items()

    def gradient(self, name: str) -> Buf:
        """Return the place of a parameter's gradient: of the parameter's layout, in memory chosen at each backward."""
        if name not in self._gradients:
            like = self._bufs[name].meta
            meta = torch.empty_like(like)  # keeps the strides of a dense tensor, as autograd does
            storage = Storage(max(1, meta.numel()) * meta.element_size(), _ELSEWHERE)
            self._gradients[name] = Buf(storage, meta)
        return self._gradients[name]

    def replace(self, name: str, tensor: torch.Tensor) -> bool:
        """Let a name stand for other memory; return False if its layout differs, so that plans must be made anew."""
        buf = self._bufs[name]
        assert buf.storage.tensor is not None
        same = tensor.shape == buf.meta.shape and tensor.stride() == buf.meta.stride() and tensor.dtype == buf.dtype
        if not same or tensor.device != buf.storage.tensor.device:
            return False
        buf.storage.tensor = tensor.detach()
        buf.storage.offset = int(tensor.storage_offset()) * tensor.element_size()
        self.version += 1
        return True


class GradientSet:
    """Memory for one gradient of each of a set of parameters."""

    def __init__(self, places: Mapping[str, Buf], device: torch.device) -> None:
        self._arrays: list[npt.NDArray[np.generic]] = []
        self._places: dict[str, tuple[npt.NDArray[np.generic], Buf]] = {}
        self.inside: dict[Storage, torch.Tensor] = {}
        self._on_host = device.type == "cpu"
        # numpy has every dtype: its arrays become tensors in one call each.
        self._known = self._on_host and all(buf.dtype in _NUMPY for buf in places.values())
        for name, buf in places.items():
            self.inside[buf.storage] = self._make(name, buf, device)
        self._by_name = {name: self.inside[buf.storage] for name, buf in places.items()}
        self._idle = list(map(sys.getrefcount, self._arrays))
        self.taken = False

    def _make(self, name: str, buf: Buf, device: torch.device) -> torch.Tensor:
        if not self._on_host:
            return torch.empty_strided(buf.shape, buf.meta.stride(), dtype=buf.dtype, device=device)
        array = _aligned(buf)
        self._arrays.append(array)
        self._places[name] = (array, buf)
        return _over(array, buf)

    def free(self) -> bool:
        """Whether no backward writes to this memory and no tensor outside refers to it any more."""
        return not self.taken and list(map(sys.getrefcount, self._arrays)) == self._idle

    def hand_out(self) -> dict[str, torch.Tensor]:
        """Return the gradients as tensors that own their memory as far as the user can see."""
        if not self._on_host:
            return {name: tensor.clone() for name, tensor in self._by_name.items()}
        if self._known:
            return dict(zip(self._places, map(torch.from_numpy, self._arrays), strict=True))
        return {name: _over(array, buf) for name, (array, buf) in self._places.items()}


class Gradients:
    """Gradient memory that is used again as soon as the user has dropped what was handed out of it.

    A fresh tensor for every gradient costs a page fault for each of its pages. So gradients are written to lasting
    memory and handed out as tensors over it. Each tensor holds a reference to the memory, and only memory that nobody
    refers to is written again: a gradient that a user keeps never changes.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._sets: dict[tuple[str, ...], list[GradientSet]] = {}
        self._lock = Lock()

    def take(self, names: tuple[str, ...], places: Mapping[str, Buf]) -> GradientSet:
        """Give memory that nobody refers to for these gradients, and to one backward alone until it gives it back."""
        with self._lock:
            sets = self._sets.setdefault(names, [])
            free = next((gradients for gradients in sets if gradients.free()), None)
            if free is None:
                with torch.inference_mode(False):
                    free = GradientSet(places, self._device)
                sets.append(free)
            free.taken = True
        return free


def _aligned(buf: Buf) -> npt.NDArray[np.generic]:
    """An array of bytes that begins at a cache line, or of the buffer's layout where numpy has its dtype."""
    raw = np.empty(buf.storage.nbytes + ALIGN, np.uint8)
    start = -raw.ctypes.data % ALIGN
    raw = raw[start : start + buf.storage.nbytes]
    dtype = _NUMPY.get(buf.dtype)
    if dtype is None:
        return raw
    strides = [stride * buf.dtype.itemsize for stride in buf.meta.stride()]
    return np.ndarray(buf.shape, dtype, raw, strides=strides)


def _over(array: npt.NDArray[np.generic], buf: Buf) -> torch.Tensor:
    """A new tensor over an array's memory, which lives as long as the tensor."""
    if buf.dtype in _NUMPY:
        return torch.from_numpy(array)
    count = buf.storage.nbytes // buf.dtype.itemsize
    return torch.frombuffer(array, dtype=buf.dtype, count=count).as_strided(buf.shape, buf.meta.stride())
