"""Storages and the views on them: what instructions name before memory exists."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import onnx_ir as ir
import torch

from ontrain.capture import tensor_dtype
from ontrain.errors import ProviderError

__all__ = ["Buf", "Layout", "Storage", "new_buf", "order_of", "torch_dtype"]

Layout = tuple[tuple[int, ...], tuple[int, ...], int, torch.dtype]
"""Sizes, strides, offset and dtype of a view."""

_ABSENT = (ir.DataType.COMPLEX64, ir.DataType.COMPLEX128, ir.DataType.STRING, ir.DataType.UNDEFINED)


def torch_dtype(dtype: ir.DataType | None) -> torch.dtype:
    """Return torch's dtype for an ONNX one."""
    if dtype is None or dtype in _ABSENT:
        raise ProviderError(
            f"TorchExecutionProvider has no kernels for {dtype.name.lower() if dtype else 'values of unknown dtype'}",
            way_out="use CPUExecutionProvider or ReferenceExecutionProvider, or let a Cast convert the values",
        )
    return tensor_dtype(dtype)


@dataclass(eq=False)
class Storage:
    """A stretch of memory: in the arena (placed by the plan) or owned from outside.

    Attributes:
        nbytes: its size.
        tensor: the memory itself for a state, input or constant; None for the arena.
        born, dies: first and last instruction that touches it.
        offset: where the plan put it in the arena, or where it begins in the outside memory, in bytes.
        merged: the storage whose memory it took over, if it was computed in place.
        frame: the storage that it lies inside of, for what a branch or the body of a loop computes.
        layout: sizes, strides and dtype of what a variable holds, and so is in no arena: a kernel's own result, or what
            the caller lends.
        lent: whether it is the caller's, so that nothing may write to it.
        exact: whether a kernel counts on the layout that is planned.
    """

    nbytes: int
    tensor: torch.Tensor | None = None
    born: int = -1
    dies: int = -1
    offset: int = -1
    merged: Storage | None = None
    frame: Storage | None = None
    layout: Layout | None = None
    lent: bool = False
    exact: bool = False

    @property
    def held(self) -> bool:
        """Whether a variable holds it: it has memory from when a kernel returns it until its last reader has run."""
        return self.layout is not None

    @property
    def planned(self) -> bool:
        """Whether the plan decides where it lies."""
        return self.tensor is None

    def root(self) -> Storage:
        """The storage that this one finally lives in."""
        return self if self.merged is None else self.merged.root()

    def place(self) -> int:
        """Where it lies in the arena, in bytes; a frame lies in the arena itself."""
        root = self.root()
        return root.offset + (root.frame.place() if root.frame is not None else 0)


@dataclass(frozen=True, eq=False)
class Buf:
    """A strided view on a storage. `meta` is a tensor on torch's meta device with its dtype, sizes, strides, offset."""

    storage: Storage
    meta: torch.Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes."""
        return tuple(self.meta.shape)

    @property
    def dtype(self) -> torch.dtype:
        """Element type."""
        return self.meta.dtype

    def layout(self) -> Layout:
        """Sizes, strides, offset and dtype."""
        return tuple(self.meta.shape), tuple(self.meta.stride()), int(self.meta.storage_offset()), self.dtype

    def same_layout(self, other: Buf) -> bool:
        """Whether both describe the same elements in the same order."""
        return self.layout() == other.layout()

    def same_elements(self, other: Buf) -> bool:
        """Whether both show the same elements at the same places; strides of axes of size 1 say nothing of it."""
        (sizes, strides, *rest), (others, their_strides, *their_rest) = self.layout(), other.layout()
        steps = zip(sizes, strides, their_strides, strict=False)
        return (
            self.storage is other.storage
            and (sizes, rest) == (others, their_rest)
            and all(step == other_step for size, step, other_step in steps if size != 1)
        )

    def fills_storage(self) -> bool:
        """Whether the view covers its whole storage without a gap, row after row or channels last."""
        return (
            self.meta.is_contiguous(memory_format=order_of(self.meta))
            and self.meta.storage_offset() == 0
            and self.meta.numel() * self.dtype.itemsize == self.storage.nbytes
        )

    def materialise(self, memory: torch.UntypedStorage, byte_offset: int, device: torch.device) -> torch.Tensor:
        """Return a real tensor for this view over `memory`, whose storage begins at `byte_offset`."""
        size = self.dtype.itemsize
        assert byte_offset % size == 0
        tensor = torch.empty(0, dtype=self.dtype, device=device)
        start = byte_offset // size + self.meta.storage_offset()
        return tensor.set_(memory, int(start), self.meta.shape, self.meta.stride())


def order_of(meta: torch.Tensor) -> torch.memory_format:
    """In which order a tensor's elements lie: channels last where it is so of images, else row after row.

    A part of larger images lies as these do, with gaps.
    """
    if meta.dim() == 4 and not meta.is_contiguous():
        (_, channels, height, width), (image, channel, row, pixel) = meta.shape, meta.stride()
        if channel == 1 and channels <= pixel and pixel * width <= row and row * height <= image:
            return torch.channels_last
        if meta.is_contiguous(memory_format=torch.channels_last):
            return torch.channels_last
    return torch.contiguous_format


def new_buf(
    shape: Iterable[int], dtype: torch.dtype, frame: Storage | None = None,
    order: torch.memory_format = torch.contiguous_format,
) -> Buf:  # fmt: skip
    """Return a buffer without gaps over a storage of its own, inside of a frame if there is one."""
    meta = torch.empty(tuple(shape), dtype=dtype, device="meta", memory_format=order)
    return Buf(Storage(max(1, meta.numel()) * dtype.itemsize, frame=frame), meta)
