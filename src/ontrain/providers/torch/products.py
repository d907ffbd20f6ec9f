"""The matrix products of a compiled program: what bounds the time of a step from below."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ontrain.providers.torch.buffers import Body, Buf
from ontrain.providers.torch.emitter import Instruction

__all__ = ["Product", "products_of"]

# Functions that multiply matrices, and which of their arguments are the factors.
_FACTORS = {
    torch.mm: (0, 1), torch.addmm: (1, 2), torch.Tensor.addmm_: (1, 2),
    torch.bmm: (0, 1), torch.baddbmm: (1, 2), torch.Tensor.baddbmm_: (1, 2),
}  # fmt: skip


@dataclass(frozen=True, order=True)
class Product:
    """A product of matrices [batch, rows, inner] and [batch, inner, columns].

    Attributes:
        batch, rows, columns, inner: sizes; the batch is 1 for one pair of matrices.
        left, right, result: how far rows and columns lie apart in memory, in elements: (768, 1) is row after row.
        dtype: of all three, as torch writes it.
    """

    batch: int
    rows: int
    columns: int
    inner: int
    left: tuple[int, int]
    right: tuple[int, int]
    result: tuple[int, int]
    dtype: str

    @property
    def flops(self) -> int:
        """Floating-point operations; a multiplication and an addition are two."""
        return 2 * self.batch * self.rows * self.columns * self.inner


def products_of(program: Sequence[Instruction]) -> Counter[Product]:
    """Count a program's matrix products, those of the bodies of loops and branches once.

    Products inside of other calls (convolutions, attention in tiles or by ATen's kernel, einsum) are not seen.
    """
    found: Counter[Product] = Counter()
    for one in program:
        if one.factors is not None:
            found[_product(*one.factors)] += 1
        elif one.fn in _FACTORS:
            left, right = (one.args[place] for place in _FACTORS[one.fn])
            found[_product(left, right, one.writes[0])] += 1
        for body in _bodies((one.args, one.kwargs)):
            found += products_of(body.program)
    return found


def _product(left: Buf, right: Buf, result: Buf) -> Product:
    *batch, rows, inner = left.shape
    return Product(
        batch[0] if batch else 1, rows, right.shape[-1], inner, _strides(left), _strides(right), _strides(result),
        str(left.dtype).removeprefix("torch."),
    )  # fmt: skip


def _strides(buf: Buf) -> tuple[int, int]:
    down, across = buf.meta.stride()[-2:]
    return down, across


def _bodies(tree: Any) -> list[Body]:
    if isinstance(tree, Body):
        return [tree]
    if isinstance(tree, dict):
        tree = list(tree.values())
    return [body for one in tree for body in _bodies(one)] if isinstance(tree, list | tuple) else []
