"""Matrix products and the determinant. A gradient is one product, never a batched one that is summed afterwards."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import cast

import numpy as np
import onnx_ir as ir

from ontrain.operators.agreement import broadcast, shape_of, size_of
from ontrain.operators.emit import Emitter, Value
from ontrain.operators.gradients import Adjoints, Op, gradient
from ontrain.operators.record import DOMAIN, Precision, Rows, Stock, define
from ontrain.operators.shapes import dims, static_dims

__all__ = ["transposed"]


def _matmul(node: ir.Node, shapes: Sequence[tuple[int, ...]]) -> Iterator[tuple[int, int]]:
    a, b = shapes
    if a and b:
        yield a[-1], b[-2] if len(b) > 1 else b[0]
        yield from broadcast(node, [a[:-2], b[:-2]])


def _gemm(node: ir.Node, shapes: Sequence[tuple[int, ...]]) -> Iterator[tuple[int, int]]:
    a, b = (shape[::-1] if node.attributes.get_int(name, 0) else shape
            for shape, name in zip(shapes, ("transA", "transB"), strict=False))  # fmt: skip
    if len(a) == len(b) == 2:
        yield a[1], b[0]
        yield from broadcast(node, [(a[0], b[1]), *shapes[2:]])


def _matmul_flops(node: ir.Node) -> int:
    return 2 * size_of(node.outputs[0]) * shape_of(node, 0)[-1]


def _gemm_flops(node: ir.Node) -> int:
    a = shape_of(node, 0)
    transposed = node.attributes["transA"].as_int() if "transA" in node.attributes else 0
    return 2 * size_of(node.outputs[0]) * a[0 if transposed else 1]


def transposed(op: Emitter, x: Value) -> Value:
    """Swap the last two axes of `x`; a value that is itself such a swap is undone instead."""
    rank = len(dims(x))
    swap = [*range(rank - 2), rank - 1, rank - 2]
    maker = x.producer()
    if maker is not None and maker.op_type == "Transpose" and not maker.domain:
        perm = maker.attributes.get_ints("perm", swap[::-1] if rank != 2 else swap)
        if list(perm) == swap:
            return cast(Value, maker.inputs[0])
    return op.Transpose(x, perm=swap)


define("MatMul", precision=Precision.HALF, agreeing=_matmul, flops=_matmul_flops, rows=Rows.MATMUL, stock=Stock.KERNEL)


@gradient("MatMul")
def matmul(op: Op, dy: Value, a: Value, b: Value) -> Adjoints:
    """For y = a b: dy bᵀ and aᵀ dy. An operand that the whole batch shares gets one 2-D product over all rows."""
    a_dims, b_dims = static_dims(a), static_dims(b)
    if len(a_dims) == 1 or len(b_dims) == 1:
        return _with_vector(op, dy, a, b)
    da = db = None
    if op.wanted[0]:
        shared = math.prod(a_dims[:-2]) == 1 and len(b_dims) > 2
        da = _shared_left(op, dy, b) if shared else op.MatMul(dy, transposed(op, b))
    if op.wanted[1]:
        shared = math.prod(b_dims[:-2]) == 1 and len(a_dims) > 2 and static_dims(dy)[:-2] == a_dims[:-2]
        db = op.MatMul(transposed(op, _rows(op, a)), _rows(op, dy)) if shared else op.MatMul(transposed(op, a), dy)
    return _like(op, da, a_dims), _like(op, db, b_dims)


def _rows(op: Op, x: Value) -> Value:
    """[…, K] as [rows, K]."""
    shape = static_dims(x)
    return op.reshaped(x, [math.prod(shape[:-1]), shape[-1]])


def _like(op: Op, grad: Value | None, shape: tuple[int, ...]) -> Value | None:
    """Give a 2-D product the leading ones of the operand it belongs to."""
    return op.reshaped(grad, shape) if grad is not None and math.prod(static_dims(grad)) == math.prod(shape) else grad


def _shared_left(op: Op, dy: Value, b: Value) -> Value:
    """For a [M, K] under b […, K, N]: Σ over the batch of dy bᵀ, as [M, batch·N] [batch·N, K]."""
    batch = static_dims(dy)[:-2]
    m, n, k = static_dims(dy)[-2], static_dims(dy)[-1], static_dims(b)[-2]
    last = len(batch)
    if static_dims(b)[:-2] != batch:
        return op.MatMul(dy, transposed(op, b))
    left = op.reshaped(op.Transpose(dy, perm=[last, *range(last), last + 1]), [m, math.prod(batch) * n])
    return op.MatMul(left, op.reshaped(transposed(op, b), [math.prod(batch) * n, k]))


def _with_vector(op: Op, dy: Value, a: Value, b: Value) -> Adjoints:
    """A vector stands for a row on the left and for a column on the right."""
    a_dims, b_dims = static_dims(a), static_dims(b)
    if len(a_dims) == len(b_dims) == 1:
        return dy * b, dy * a
    if len(b_dims) == 1:
        da = op.Unsqueeze(dy, [-1]) * b if op.wanted[0] else None
        db = op.MatMul(op.reshaped(dy, [1, math.prod(a_dims[:-1])]), _rows(op, a)) if op.wanted[1] else None
        return da, db
    row = op.Unsqueeze(dy, [-2])
    da = op.MatMul(row, transposed(op, b)) if op.wanted[0] else None
    return da, op.Unsqueeze(a, [-1]) * row if op.wanted[1] else None


define("Gemm", precision=Precision.HALF, agreeing=_gemm, flops=_gemm_flops, rows=Rows.GEMM, stock=Stock.KERNEL)


@gradient("Gemm")
def gemm(
    op: Op, dy: Value, a: Value, b: Value, c: Value | None = None,
    *, alpha: float, beta: float, transA: int, transB: int,
) -> Adjoints:  # fmt: skip
    """For y = alpha · A B + beta · c, A = aᵀ if transA: A gets alpha · dy Bᵀ and B gets alpha · Aᵀ dy."""

    def product(left: Value, right: Value, trans_left: int, trans_right: int) -> Value:
        if alpha == 1 and not trans_left and not trans_right:
            return op.MatMul(left, right)
        return op.Gemm(left, right, alpha=alpha, transA=trans_left, transB=trans_right)

    da = db = None
    if op.wanted[0]:
        da = product(b, dy, transB, 1) if transA else product(dy, b, 0, 1 - transB)
    if op.wanted[1]:
        db = product(dy, a, 1, transA) if transB else product(a, dy, 1 - transA, 0)
    dc = None if c is None else dy if beta == 1 else dy * beta
    return da, db, dc


def _linear_flops(node: ir.Node) -> int:
    return 2 * size_of(node.outputs[0]) * shape_of(node, 0)[1]


define("Linear", domain=DOMAIN, precision=Precision.HALF, flops=_linear_flops, rows=Rows.GEMM, stock=Stock.BODY)
define("Det", stock=Stock.COMPARED)


@gradient("Det")
def det(op: Op, dy: Value, x: Value) -> Adjoints:
    """dy times the cofactors, which are right for a singular matrix too, unlike det · x⁻ᵀ."""
    *lead, n, _ = shape = static_dims(x)
    rank = len(shape)
    slopes = op.Reshape(dy, [*lead, 1, 1])
    if n == 1:
        return slopes
    others = np.array([[j for j in range(n) if j != i] for i in range(n)])
    minors = op.Gather(op.Gather(x, others, axis=rank - 2), others, axis=rank)  # [row out, rows, column out, columns]
    minors = op.Det(op.Transpose(minors, perm=[*range(rank - 2), rank - 2, rank, rank - 1, rank + 1]))
    places = np.arange(n)
    return slopes * minors * op.const((-1.0) ** (places[:, None] + places), x.dtype)
