"""Products by oneDNN with a factor in the order in which it is multiplied, in memory that is filled and not made anew.

A product x [R, K] · w [K, C] is a convolution of size 1 over R points. oneDNN copies its filters, each time, into an
order of its own. Here they are copied into memory that has this order already, in one pass; what oneDNN still allocates
is scratch memory.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

import torch

from ontrain.internals import available
from ontrain.providers.torch.strips import strips
from ontrain.providers.torch.weights import HAS_ORDER, Windows, memory_of, reordered

__all__ = ["HAS_KERNELS", "PACKED", "PACKED_BYTES", "add_product", "can_pack"]

PACKED_BYTES = 4 << 20
"""What a factor may take, so that a few packs do for all products of a model."""
PACKED = 2
"""Which argument of `add_product` is packed."""
_KEPT_BYTES = 64 << 20
"""What the packs of a thread take together at most."""
_WIDTHS = (64, 48, 32, 16, 8)
_PLACES: Windows = [0, 0], [1, 1], [1, 1], 1
"""Padding, stride, dilation and groups."""
_CONVOLUTION: Any = getattr(available("torch.ops.mkldnn._convolution_pointwise_"), "binary", None)
HAS_KERNELS = HAS_ORDER and _CONVOLUTION is not None
"""Whether this build of torch has what is called here."""


class _Pack:
    """Filters in oneDNN's order, and a view of their memory.

    Args:
        rows, inner, columns: R, K and C; the order depends on them all.

    Attributes:
        filters: the tensor that oneDNN reads; torch does not know its layout.
        stripes: [ceil(C / b), K, b], b columns after b columns, the last ones padded with zeros.

    Raises:
        LookupError: oneDNN keeps filters in another order.
    """

    def __init__(self, rows: int, inner: int, columns: int) -> None:
        self.columns = columns
        numbers = torch.arange(inner * columns, dtype=torch.float32, device="cpu").view(columns, inner)
        self.filters = reordered(numbers.view(columns, inner, 1, 1), _PLACES, [1, inner, rows, 1])
        memory = memory_of(self.filters, torch.float32)
        self.nbytes = memory.nbytes
        self.stripes = _stripes(memory, numbers).zero_()
        self._whole = columns // self.stripes.shape[2]

    def fill(self, w: torch.Tensor) -> None:
        """Take over a matrix [K, C]."""
        _, inner, b = self.stripes.shape
        # Of columns that lie one after the other, a cache line of the stripe at a time; see `strips`.
        cuts = strips(b, self._whole * inner, w.itemsize) if w.stride(0) == 1 else [(0, b)]
        for start, size in cuts if self._whole else ():
            across = w.stride(1)
            stripes = w.as_strided(
                (self._whole, inner, size), (b * across, *w.stride()), w.storage_offset() + start * across
            )
            self.stripes[: self._whole, :, start : start + size].copy_(stripes)
        if self.columns > self._whole * b:
            self.stripes[-1, :, : self.columns - self._whole * b].copy_(w[:, self._whole * b :])


def _stripes(memory: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """How a matrix of distinct numbers, [C, K], lies in memory: looked at, not presumed."""
    columns, inner = numbers.shape
    for b in _WIDTHS:
        count = -(-columns // b)
        if memory.numel() == count * b * inner:
            padded = numbers.new_zeros(count * b, inner)
            padded[:columns] = numbers
            stripes = memory.view(count, inner, b)
            if torch.equal(stripes, padded.view(count, b, inner).transpose(1, 2)):
                return stripes
    raise LookupError(f"{columns} filters over {inner} channels lie in an order that is not known")


class _Packs(threading.local):
    """The packs of a thread, by sizes: nobody else fills them between a thread's filling and multiplying."""

    def __init__(self) -> None:
        self._made: OrderedDict[tuple[int, int, int], _Pack] = OrderedDict()
        self._widths: dict[tuple[int, int, int, int], int | None] = {}
        """Of a stripe in the order that is the fastest for sizes and threads, if known; any other one is very slow."""

    def of(self, rows: int, inner: int, columns: int) -> _Pack | None:
        """A pack for these sizes and the present number of threads, or None if oneDNN's order is not known."""
        sizes, pack = (rows, inner, columns, torch.get_num_threads()), None
        if sizes not in self._widths:
            pack = _pack(rows, inner, columns)
            self._widths[sizes] = None if pack is None else pack.stripes.shape[2]
        width = self._widths[sizes]
        if width is None:
            return None
        key = inner, columns, width
        if key not in self._made:
            self._made[key] = pack or _Pack(rows, inner, columns)
            while sum(pack.nbytes for pack in self._made.values()) > _KEPT_BYTES:
                self._made.popitem(last=False)
        self._made.move_to_end(key)
        return self._made[key]


_packs = _Packs()


def _pack(rows: int, inner: int, columns: int) -> _Pack | None:
    try:
        return _Pack(rows, inner, columns)
    except (LookupError, RuntimeError):
        return None


def can_pack(rows: int, inner: int, columns: int) -> bool:
    """Whether the order is known in which oneDNN keeps the second factor of a product of these sizes, at present.

    Another processor, or another number of threads, has other orders.
    """
    return HAS_KERNELS and _packs.of(rows, inner, columns) is not None


def add_product(out: torch.Tensor, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None) -> None:
    """Add x · w, and a bias [C] to each row, to what is in `out`.

    Torch multiplies where the order of the factor is not known for the present number of threads, which may not be that
    of the time when this was chosen.

    Args:
        out: [R, C], float32; rows may have gaps between them.
        x: [R, K], likewise.
        w: [K, C], of `PACKED_BYTES` at most; fast row after row.
        bias: [C], or None.
    """
    pack = _packs.of(x.shape[0], *w.shape)
    if pack is None:
        out.addmm_(x, w)
        if bias is not None:
            out.add_(bias)
        return
    pack.fill(w)
    _CONVOLUTION(_image(out), _image(x), pack.filters, bias, *_PLACES, "add", None, None, [], None)


def _image(matrix: torch.Tensor) -> torch.Tensor:
    """[R, C] as an image of one row of R points, with C channels: [1, C, R, 1]."""
    return matrix.t()[None, :, :, None]
