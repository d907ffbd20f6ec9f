"""A product in half precision whose result is large, a few rows at a time, added up in single precision."""

from __future__ import annotations

import torch

from ontrain.providers.torch.buffers import Buf
from ontrain.providers.torch.emitter import Emitter
from ontrain.providers.torch.lowering.product import Factors

__all__ = ["add_half_product"]

_BLOCK_BYTES = 3 << 20
"""What a block of the product takes: a product of two matrices that stay in the cache runs half as fast again as one
whose result goes to memory, and numbers that are there are widened and added at once."""


def add_half_product(e: Emitter, factors: Factors, sums: Buf | None, *, first: bool) -> None:
    """Emit a product on the CPU, in blocks of its rows.

    ATen adds half precision to single by a copy of the whole in single precision, in new memory each time.

    Args:
        e: the emitter.
        factors: out [R, C] = x [R, K] · w [K, C], in half precision. `out` is written only without sums.
        sums: [R, C] in single precision, to which the product is added; None if `out` is all there is.
        first: whether the product is the first of the sum, so that what is there does not count.
    """
    rows, _, columns = factors.sizes
    height = max(1, min(rows, _BLOCK_BYTES // (columns * factors.x.dtype.itemsize)))
    if sums is None:
        assert first, "without sums there is one product"
        e.run(_multiply, factors.x, factors.w, height, factors.out, writes=[factors.out])
    else:
        product = e.new((height, columns), factors.x.dtype)
        wide = e.new((height, columns), sums.dtype)
        e.run(_add, factors.x, factors.w, first, product, wide, sums, writes=[product, wide, sums])
    e.program[-1].factors = factors.x, factors.w, factors.out


def _multiply(x: torch.Tensor, w: torch.Tensor, height: int, out: torch.Tensor) -> None:
    for rows, place in zip(x.split(height), out.split(height), strict=True):
        torch.mm(rows, w, out=place)


def _add(
    x: torch.Tensor, w: torch.Tensor, first: bool, product: torch.Tensor, wide: torch.Tensor, sums: torch.Tensor
) -> None:
    for rows, place in zip(x.split(len(product)), sums.split(len(product)), strict=True):
        count = len(rows)
        block = torch.mm(rows, w, out=product[:count])
        if first:
            place.copy_(block)
        else:
            place.add_(wide[:count].copy_(block))
