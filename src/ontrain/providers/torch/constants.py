"""Buffers over memory that exists before a program runs: constants, state, single numbers."""

from __future__ import annotations

import torch

from ontrain.internals import of
from ontrain.providers.torch.buffers import Buf, Storage

__all__ = ["Constants"]


class Constants:
    """Gives tensors that exist their buffers; tensors of one memory share their `Storage`.

    Args:
        device: where the instructions run.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._storages: dict[tuple[int, torch.device], Storage] = {}
        self._moved: dict[Storage, Storage] = {}
        self._numbers: dict[tuple[float, torch.dtype], Buf] = {}

    def buffer(self, tensor: torch.Tensor) -> Buf:
        """Return a buffer over a tensor."""
        key = _address(tensor)
        if key not in self._storages:
            self._storages[key] = Storage(tensor.untyped_storage().nbytes(), tensor)
        return Buf(self._storages[key], _meta_like(tensor))

    def number(self, value: float, dtype: torch.dtype) -> Buf:
        """Return a number as a 0-d tensor on the CPU, where kernels take it as the scalar that it is."""
        if (value, dtype) not in self._numbers:
            self._numbers[value, dtype] = self.buffer(torch.tensor(value, dtype=dtype, device="cpu"))
        return self._numbers[value, dtype]

    def on_device(self, buf: Buf) -> Buf:
        """Return the buffer where the instructions run: a constant from the CPU as a copy that is made once."""
        tensor = buf.storage.tensor
        own = tensor is not None and self._storages.get(_address(tensor)) is buf.storage
        if tensor is None or not own or tensor.device.type == self.device.type:
            return buf
        if buf.storage not in self._moved:
            flat = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
            moved = torch.empty(flat.shape, dtype=flat.dtype, device=self.device).copy_(flat)
            self._moved[buf.storage] = Storage(buf.storage.nbytes, moved)
        return Buf(self._moved[buf.storage], buf.meta)


def _address(tensor: torch.Tensor) -> tuple[int, torch.device]:
    """What tells memory apart; what is empty has no address of its own."""
    memory = tensor.untyped_storage()
    return memory.data_ptr() or of("torch.UntypedStorage._cdata", memory), tensor.device


def _meta_like(tensor: torch.Tensor) -> torch.Tensor:
    base = torch.empty(0, dtype=tensor.dtype, device="meta")
    storage = torch.empty(tensor.untyped_storage().nbytes(), dtype=torch.uint8, device="meta").untyped_storage()
    return base.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())
