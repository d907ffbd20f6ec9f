"""onnxruntime's weights and tables of a few bits a number, which have a scale for each block.

Source: onnxruntime, docs/ContribOperators.md; where it is silent, what the CPU kernels do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from ontrain.functions.contributed import MICROSOFT
from ontrain.functions.contributed_types import Types, real, standard_types
from ontrain.functions.registry import NoBodyError, composite
from ontrain.graph import Builder, static_dims
from ontrain.operators import Value

__all__ = ["spread", "unpacked"]

_NORMAL_FLOAT = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
"""Quantiles of the normal distribution (Dettmers et al. 2023, "QLoRA")."""
_FLOAT4 = (0.0, 1 / 192, 2 / 3, 1.0, 1 / 3, 1 / 2, 1 / 6, 1 / 4)
"""Eight magnitudes of a float of four bits, in the order of their codes; the highest bit is the sign."""


@composite(
    "MatMulBnb4",
    domain=MICROSOFT,
    infer=lambda inputs, N=0, K=0, transB=1, **_: [
        (inputs[0].dtype, ir.Shape([*list(inputs[0].shape)[:-1], N if transB else K]))
    ],
)
def matmul_bnb4(
    op: Builder, a: Value, b: Value, largest: Value,
    *, K: int = 0, N: int = 0, block_size: int = 0, quant_type: int = 0, transB: int = 1, training_mode: int = 0,
) -> Value:  # fmt: skip
    """a times a weight [N, K] of four bits a number, by a table, times the largest magnitude of each block."""
    table = _NORMAL_FLOAT if quant_type else (*_FLOAT4, *(-x for x in _FLOAT4))
    codes = op.Cast(b, to=ir.DataType.INT32)
    pairs = op.Concat(*(op.Unsqueeze(v, [1]) for v in (op.Div(codes, 16), op.Mod(codes, 16))), axis=1)
    numbers = op.Gather(op.const(table, a.dtype), op.Reshape(pairs, [-1]))
    blocks = static_dims(largest)[0]
    missing = blocks * block_size - static_dims(numbers)[0]
    if missing > 0:
        numbers = op.Pad(numbers, [0, missing])
    weight = op.Reshape(op.Reshape(numbers, [blocks, block_size]) * op.Unsqueeze(largest, [1]), [-1])
    weight = op.Reshape(op.Slice(weight, [0], [N * K], [0]), [N, K])
    return op.MatMul(a, op.Transpose(weight, perm=[1, 0]) if transB else weight)


@composite(
    "MatMulNBits",
    domain=MICROSOFT,
    infer=lambda inputs, N=0, **_: [(inputs[0].dtype, ir.Shape([*list(inputs[0].shape)[:-1], N]))],
)
def matmul_n_bits(
    op: Builder, a: Value, b: Value, scales: Value, zero_points: Value | None = None, g_idx: Value | None = None,
    bias: Value | None = None,
    *, K: int = 0, N: int = 0, bits: int = 4, block_size: int = 32, accuracy_level: int = 0, weight_prepacked: int = 0,
) -> Value:  # fmt: skip
    """a [… , K] times a weight [N, K] kept as `bits`-bit numbers with a scale and a zero point per block of a row.

    The weight itself takes no gradient; a, the scales and the bias do.
    """
    if weight_prepacked:
        raise NoBodyError("a weight in the order of another processor", "use CPUExecutionProvider")
    blocks = -(-K // block_size)
    numbers = _pieces(op, op.Cast(b, to=ir.DataType.UINT8), bits) if bits < 8 else b
    numbers = op.Reshape(numbers, [N, blocks, block_size])
    zero: Value | float = float(1 << (bits - 1))
    if zero_points is not None and zero_points.dtype != ir.DataType.UINT8:
        zero = op.Cast(op.Reshape(zero_points, [N, blocks]), to=a.dtype)
    elif zero_points is not None:
        pieces = _pieces(op, zero_points, bits)
        per_row = math.prod(static_dims(pieces)) // N
        zero = op.Cast(op.Slice(op.Reshape(pieces, [N, per_row]), [0], [blocks], [1]), to=a.dtype)
    scale = op.Reshape(scales, [N, blocks])
    if g_idx is None:
        numbers, scale = op.Cast(numbers, to=a.dtype), op.Unsqueeze(scale, [2])
        zero = zero if isinstance(zero, float) else op.Unsqueeze(zero, [2])
        weight = op.Slice(op.Reshape((numbers - zero) * scale, [N, blocks * block_size]), [0], [K], [1])
    else:  # which block's numbers a place of a row takes
        groups = op.Slice(g_idx, [0], [K], [0])
        numbers = op.Slice(op.Reshape(numbers, [N, blocks * block_size]), [0], [K], [1])
        zero = zero if isinstance(zero, float) else op.Gather(zero, groups, axis=1)
        weight = (op.Cast(numbers, to=a.dtype) - zero) * op.Gather(scale, groups, axis=1)
    y = op.MatMul(a, op.Transpose(weight, perm=[1, 0]))
    return y if bias is None else y + bias


def _gathered_types(inputs: Sequence[Any], *, gather_axis: int = 0, bits: int = 4, **_: object) -> Types:
    data, indices, scales = inputs[:3]
    ((_kind, shape),) = standard_types("Gather", [real(data), indices], axis=gather_axis)
    sizes = list(shape)
    if data.dtype == ir.DataType.UINT8 and isinstance(sizes[-1], int):
        sizes[-1] *= 8 // bits
    return [(scales.dtype, ir.Shape(sizes))]


@composite("GatherBlockQuantized", domain=MICROSOFT, infer=_gathered_types)
def gather_block_quantized(
    op: Builder, data: Value, indices: Value, scales: Value, zero: Value | None = None,
    *, gather_axis: int = 0, quantize_axis: int = 1, block_size: int = 128, bits: int = 4,
) -> Value:  # fmt: skip
    """Gather of a table with a scale and a zero point for each block of an axis; bytes hold `bits` bits a number."""
    rank, packed = len(static_dims(data)), data.dtype == ir.DataType.UINT8
    gathered, blocks = gather_axis % rank, quantize_axis % rank
    along = gathered == blocks
    if along and packed:
        raise NoBodyError("a table of packed bytes that is gathered along its blocks", "use CPUExecutionProvider")
    work, index_rank = scales.dtype, len(_dims(indices))
    owners = _block_of(op, indices, static_dims(data)[gathered], block_size) if along else indices
    if not packed:  # the standard gathers no numbers of four bits
        data = op.Cast(data, to=ir.DataType.INT8)
        zero = zero if zero is None else op.Cast(zero, to=ir.DataType.INT8)
    rows, scale = op.Gather(data, indices, axis=gathered), op.Gather(scales, owners, axis=gathered)
    whole = zero if zero is None else op.Gather(zero, owners, axis=gathered)
    numbers = op.Cast(unpacked(op, rows, bits) if packed else rows, to=work)
    place = blocks + index_rank - 1 if blocks > gathered else blocks
    count, size = _dims(scale)[-1], _dims(numbers)[place]
    if whole is not None and packed:  # padded to whole bytes
        whole = op.Slice(unpacked(op, whole, bits), [0], [count], [-1])
    factors = [scale] if whole is None else [scale, op.Cast(whole, to=work)]
    if not along:
        factors = [spread(op, v, place, block_size, size) for v in factors]
    if len(factors) > 1:
        numbers = numbers - factors[1]
    elif packed:
        numbers = numbers - float(1 << (bits - 1))
    return numbers * factors[0]


def _block_of(op: Builder, indices: Value, size: int, block: int) -> Value:
    """The block of each place of an axis; places count from the end where they are negative."""
    return op.Div(op.Where(op.Less(indices, 0), op.Add(indices, size), indices), block)


def _pieces(op: Builder, packed: Value, bits: int) -> Value:
    """The numbers of `bits` bits in each byte, the lowest first, along a new last axis."""
    mask = op.const((1 << bits) - 1, ir.DataType.UINT8)
    shifted = (op.BitShift(packed, op.const(n, ir.DataType.UINT8), direction="RIGHT") for n in range(0, 8, bits))
    return op.Concat(*(op.Unsqueeze(op.BitwiseAnd(byte, mask), [-1]) for byte in shifted), axis=-1)


def unpacked(op: Builder, packed: Value, bits: int) -> Value:
    """Return the numbers of `bits` bits in each byte, the lowest first, along the last axis."""
    if bits == 8:
        return packed
    *lead, last = _dims(packed)
    rows = [0] * len(lead) if -1 in lead else lead
    return op.Reshape(_pieces(op, packed, bits), [*rows, last * (8 // bits)])


def _dims(value: Value) -> list[int]:
    """The sizes of a value, -1 for those that are open."""
    return [dim if isinstance(dim, int) else -1 for dim in value.shape or ()]


def spread(op: Builder, x: Value, axis: int, block: int, size: int) -> Value:
    """Return each element `block` times along an axis, `size` altogether."""
    shape = _dims(x)
    before, behind = shape[:axis], shape[axis + 1 :]
    wide = op.Expand(
        op.Unsqueeze(x, [axis + 1]),
        [*(max(dim, 1) for dim in before), shape[axis], block, *(max(dim, 1) for dim in behind)],
    )
    flat = op.Reshape(wide, [*([0] * axis if -1 in before else before), shape[axis] * block, *behind])
    return op.Slice(flat, [0], [size], [axis])
