"""The matrix products of a compiled program: what bounds the time of a step from below."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ontrain.providers.torch.buffers import Buf
from ontrain.providers.torch.instructions import Body, Instruction

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
    products: Counter[Product] = Counter()
    for instruction in program:
        if instruction.factors is not None:
            products[_product(*instruction.factors)] += 1
        elif instruction.fn in _FACTORS:
            left, right = (instruction.args[place] for place in _FACTORS[instruction.fn])
            assert isinstance(left, Buf) and isinstance(right, Buf)
            products[_product(left, right, instruction.writes[0])] += 1
        for body in _bodies((*instruction.args, *instruction.kwargs.values())):
            products += products_of(body.program)
    return products


def _product(left: Buf, right: Buf, result: Buf) -> Product:
    *batch, rows, inner = left.shape
    return Product(
        batch[0] if batch else 1, rows, right.shape[-1], inner, _strides(left), _strides(right), _strides(result),
        str(left.dtype).removeprefix("torch."),
    )  # fmt: skip


def _strides(buf: Buf) -> tuple[int, int]:
    down, across = buf.meta.stride()[-2:]
    return down, across


def _bodies(tree: object) -> list[Body]:
    if isinstance(tree, Body):
        return [tree]
    return [body for item in tree for body in _bodies(item)] if isinstance(tree, list | tuple) else []
