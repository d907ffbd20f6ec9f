"""Matrix products and embeddings."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from ontrain.capture.aten.registry import aten
from ontrain.capture.context import AtenBuilder

__all__: list[str] = []


def transposed(op: AtenBuilder, x: ir.Value) -> Any:
    """Swap the last two axes."""
    rank = len(x.shape or ())
    if rank < 2:
        return x
    # A tied or reused weight is transposed once.
    perm = [*range(rank - 2), rank - 1, rank - 2]
    return op.memo(("transposed", x), lambda: op.Transpose(x, perm=perm))


@aten("linear")
def linear(op: AtenBuilder, x: Any, weight: Any, bias: Any = None) -> Any:
    y = op.MatMul(x, transposed(op, weight))
    return y if bias is None else y + bias


@aten("matmul", "mm", "bmm", "mv", "dot", "inner")
def matmul(op: AtenBuilder, a: Any, b: Any) -> Any:
    return op.MatMul(a, b)


@aten("addmm", "baddbmm", "addbmm", "addmv")
def addmm(op: AtenBuilder, c: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    y = _scaled(op, op.MatMul(a, b), alpha)
    return y if beta == 0 else y + _scaled(op, c, beta)


def _scaled(op: AtenBuilder, x: Any, factor: Any) -> Any:
    return x if factor == 1 else x * op.cast(factor, x.dtype)


@aten("outer", "ger")
def outer(op: AtenBuilder, a: Any, b: Any) -> Any:
    return op.Unsqueeze(a, [1]) * op.Unsqueeze(b, [0])


@aten("einsum")
def einsum(op: AtenBuilder, equation: str, operands: list[Any], *, path: Any = None) -> Any:
    return op.Einsum(*operands, equation=equation)


@aten("embedding")
def embedding(
    op: AtenBuilder, weight: Any, ids: Any, padding_idx: int = -1, scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:  # fmt: skip
    if scale_grad_by_freq:
        raise op.refuse(
            "an embedding scales its gradient by frequency",
            "its gradient is not the one of a row lookup",
            "set scale_grad_by_freq=False",
        )
    # torch.nn.functional makes a negative padding_idx positive before it calls the operator; −1 means none.
    return op.composite("Embedding", weight, ids, padding_idx=padding_idx)


@aten("bilinear")
def bilinear(op: AtenBuilder, a: Any, b: Any, weight: Any, bias: Any = None) -> Any:
    y = op.Einsum(a, weight, b, equation="...i,oij,...j->...o")
    return y if bias is None else y + bias
