"""Matrix products and embeddings."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from ontrain.capture.aten.creation import filled
from ontrain.capture.aten.registry import aten
from ontrain.capture.context import AtenBuilder, Scalar
from ontrain.operators import HALVES, Value

__all__: list[str] = []


def transposed(op: AtenBuilder, x: Value) -> Value:
    """Swap the last two axes."""
    rank = len(x.shape or ())
    if rank < 2:
        return x
    # A tied or reused weight is transposed once.
    perm = [*range(rank - 2), rank - 1, rank - 2]
    return op.memo(("transposed", x), lambda: op.Transpose(x, perm=perm))


@aten("linear")
def linear(op: AtenBuilder, x: Value, weight: Value, bias: Value | None = None) -> Value:
    y = op.MatMul(x, transposed(op, weight))
    return y if bias is None else y + bias


@aten("matmul", "mm", "bmm", "mv", "dot")
def matmul(op: AtenBuilder, a: Value, b: Value) -> Value:
    return op.MatMul(a, b)


@aten("inner")
def inner(op: AtenBuilder, a: Value, b: Value) -> Value:
    """Sum of products along the last axis of both; a scalar multiplies."""
    ranks = len(op.input_shape(0)), len(op.input_shape(1))
    if 0 in ranks:
        return a * b
    if ranks[1] <= 2:
        return op.MatMul(a, transposed(op, b))
    axes = string.ascii_lowercase
    rows, columns = axes[: ranks[0] - 1], axes[ranks[0] - 1 : sum(ranks) - 2]
    return op.Einsum(a, b, equation=f"{rows}z,{columns}z->{rows}{columns}")


@aten("addmm", "baddbmm", "addbmm", "addmv")
def addmm(op: AtenBuilder, c: Value, a: Value, b: Value, *, beta: Scalar = 1, alpha: Scalar = 1) -> Value:
    factors = [factor for factor in (alpha, beta) if isinstance(factor, int | float)]
    if op.dtype in HALVES and "aten.addmm" in str(op.node.target) and len(factors) == 2 and beta != 0:
        return op.Gemm(a, b, c, alpha=float(factors[0]), beta=float(factors[1]))  # rounded once
    y = op.MatMul(a, b)
    if "aten.addbmm" in str(op.node.target):
        y = op.ReduceSum(y, [0], keepdims=0)
    y = _scaled(op, y, alpha)
    return op.constant_in(y, c) if beta == 0 else y + _scaled(op, c, beta)


def _scaled(op: AtenBuilder, x: Value, factor: Scalar) -> Value:
    return x if factor == 1 else x * op.cast(factor, x.dtype)


@aten("outer", "ger")
def outer(op: AtenBuilder, a: Value, b: Value) -> Value:
    times = op.And if op.dtype == ir.DataType.BOOL else op.Mul
    return times(op.Unsqueeze(op.cast(a, op.dtype), [1]), op.Unsqueeze(op.cast(b, op.dtype), [0]))


@aten("einsum")
def einsum(op: AtenBuilder, equation: str, operands: list[Any], *, path: Sequence[int] | None = None) -> Value:
    """ONNX's ellipses have equal ranks; in torch a shorter one has axes of one before its own."""
    factors = [op.cast(operand, op.dtype) for operand in operands]
    terms = equation.replace(" ", "").partition("->")[0].split(",")
    covered = {
        i: len(factors[i].shape) - len(term) + len(_ELLIPSIS) for i, term in enumerate(terms) if _ELLIPSIS in term
    }
    for i, rank in covered.items():
        if rank < max(covered.values()):
            start = terms[i].index(_ELLIPSIS)
            factors[i] = op.Unsqueeze(factors[i], list(range(start, start + max(covered.values()) - rank)))
    return op.Einsum(*factors, equation=equation)


_ELLIPSIS = "..."


@aten("_linalg_det")
def determinant(op: AtenBuilder, x: Value) -> tuple[Value, None, None]:
    # That of a matrix without rows is the empty product.
    return (op.Det(x) if op.input_shape(0)[-1] else filled(op, 1)), None, None


@aten("bilinear")
def bilinear(op: AtenBuilder, a: Value, b: Value, weight: Value, bias: Value | None = None) -> Value:
    y = op.Einsum(a, weight, b, equation="...i,oij,...j->...o")
    return y if bias is None else y + bias
