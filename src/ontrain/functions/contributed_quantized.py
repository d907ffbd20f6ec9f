"""onnxruntime's operators on whole numbers that stand for reals, in standard operators.

Source: onnxruntime, docs/ContribOperators.md; where it is silent, what the CPU kernels do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.functions.contributed import MICROSOFT
from ontrain.functions.quantization import in_range
from ontrain.functions.registry import NoBodyError, composite
from ontrain.graph import Builder, infer_node, static_dims
from ontrain.operators import Attribute, Value

__all__ = ["standard_types"]

Types = list[tuple[ir.DataType, ir.Shape]]


def standard_types(op_type: str, operands: Sequence[Any], outputs: int = 1, **attributes: Any) -> Types:
    """Return what the results of a standard operator are, each operand a value or a pair of dtype and shape."""
    values: list[ir.Value | None] = []
    for i, operand in enumerate(operands):
        if operand is None:
            values.append(None)
            continue
        dtype, shape = operand if isinstance(operand, tuple) else (operand.dtype, operand.shape)
        known = None if isinstance(operand, tuple) else operand.const_value
        values.append(ir.Value(name=f"x{i}", type=ir.TensorType(dtype), shape=ir.Shape(shape), const_value=known))
    stated = [ir.convenience.convert_attribute(k, v) for k, v in attributes.items() if v is not None and v != ()]
    types = infer_node(ir.Node("", op_type, values, stated, num_outputs=outputs))
    assert all(kind is not None for kind in types)
    return [kind for kind in types if kind is not None]


def _real(value: ir.Value) -> tuple[ir.DataType, Any]:
    return ir.DataType.FLOAT, value.shape


def _product_types(scale: int) -> Callable[..., Types]:
    """Of a product whose dtype is that of the operand at `scale`."""

    def types(inputs: Sequence[Any], **_: object) -> Types:
        kind = inputs[scale].dtype
        return standard_types("MatMul", [(kind, inputs[0].shape), (kind, inputs[1].shape)])

    return types


@composite("MatMulIntegerToFloat", domain=MICROSOFT, infer=_product_types(2))
def matmul_integer_to_float(
    op: Builder, a: Value, b: Value, a_scale: Value, b_scale: Value, a_zero: Value | None = None,
    b_zero: Value | None = None, bias: Value | None = None,
) -> Value:  # fmt: skip
    """(a − a_zero) (b − b_zero) in whole numbers, times the scales, plus a bias."""
    zero = None if a_zero is None else op.Reshape(a_zero, [])
    product = op.Cast(op.MatMulInteger(a, b, zero, b_zero), to=a_scale.dtype)
    y = product * (op.Reshape(a_scale, []) * b_scale)
    return y if bias is None else y + bias


@composite("DynamicQuantizeMatMul", domain=MICROSOFT, infer=_product_types(0))
def dynamic_quantize_matmul(
    op: Builder, a: Value, b: Value, b_scale: Value, b_zero: Value | None = None, bias: Value | None = None
) -> Value:
    """The same for real a, which is quantised by its own range first."""
    whole, scale, zero = op.DynamicQuantizeLinear(a, outputs=3)
    return op.call(MICROSOFT, "MatMulIntegerToFloat", [whole, b, scale, b_scale, zero, b_zero, bias], {})


def _gemm_types(inputs: Sequence[Any], *, transA: int = 0, transB: int = 0, **_: object) -> Types:
    zero = inputs[8] if len(inputs) > 8 else None
    kind = ir.DataType.FLOAT if zero is None else zero.dtype
    return [(kind, ir.Shape([inputs[0].shape[1 if transA else 0], inputs[3].shape[0 if transB else 1]]))]


@composite("QGemm", domain=MICROSOFT, infer=_gemm_types)
def quantised_gemm(
    op: Builder, a: Value, a_scale: Value, a_zero: Value, b: Value, b_scale: Value, b_zero: Value,
    c: Value | None = None, y_scale: Value | None = None, y_zero: Value | None = None,
    *, alpha: float = 1.0, transA: int = 0, transB: int = 0,
) -> Value:  # fmt: skip
    """alpha · (a b + c) in whole numbers, quantised again where there is a scale for it; c counts in the scales'."""
    left = op.Transpose(a, perm=[1, 0]) if transA else a
    right = op.Transpose(b, perm=[1, 0]) if transB else b
    zero = op.Reshape(b_zero, []) if math.prod(static_dims(b_zero)) == 1 else b_zero
    total = op.MatMulInteger(left, right, op.Reshape(a_zero, []), zero)
    if c is not None:
        total = op.Add(total, c)
    y = op.Cast(total, to=a_scale.dtype) * (op.Reshape(a_scale, []) * b_scale * alpha)
    return op.Identity(y) if y_scale is None else op.QuantizeLinear(y, y_scale, y_zero)


def _binary_types(inputs: Sequence[Any], **_: object) -> Types:
    kind = inputs[0].dtype
    ((_kind, shape),) = standard_types("Add", [_real(inputs[0]), _real(inputs[3])])
    return [(kind, shape)]


def _zero(op: Builder, zero: Value | None, like: Value) -> Value:
    return op.const(np.zeros((), like.dtype.numpy())) if zero is None else op.Reshape(zero, [])


def _reals(op: Builder, x: Value, scale: Value, zero: Value | None) -> Value:
    return op.DequantizeLinear(x, op.Reshape(scale, []), _zero(op, zero, x))


def _wholes(op: Builder, y: Value, scale: Value, zero: Value | None, like: Value) -> Value:
    return op.QuantizeLinear(y, op.Reshape(scale, []), _zero(op, zero, like))


def _rounded(op: Builder, y: Value, like: Value) -> Value:
    """Reals that have the zero point in them already, as whole numbers of the type of `like`."""
    return in_range(op, op.Round(y), like.dtype)


@composite("QLinearAdd", domain=MICROSOFT, infer=_binary_types)
def quantised_add(
    op: Builder, a: Value, a_scale: Value, a_zero: Value, b: Value, b_scale: Value, b_zero: Value, scale: Value,
    zero: Value | None = None,
) -> Value:  # fmt: skip
    """The sum of two quantised tensors, quantised.

    As in onnxruntime the scales are divided first, and the zero point is there before rounding: ties depend on both.
    """
    left, right = (op.Reshape(part, []) / op.Reshape(scale, []) for part in (a_scale, b_scale))
    zeros = [op.Cast(_zero(op, number, a), to=scale.dtype) for number in (a_zero, b_zero, zero)]
    whole = [op.Cast(x, to=scale.dtype) for x in (a, b)]
    shift = zeros[2] - (left * zeros[0] + right * zeros[1])
    return _rounded(op, whole[0] * left + (whole[1] * right + shift), a)


@composite("QLinearMul", domain=MICROSOFT, infer=_binary_types)
def quantised_mul(
    op: Builder, a: Value, a_scale: Value, a_zero: Value, b: Value, b_scale: Value, b_zero: Value, scale: Value,
    zero: Value | None = None,
) -> Value:  # fmt: skip
    """The product of two quantised tensors, quantised; scales are combined first, as in `QLinearAdd`."""
    ratio = op.Reshape(a_scale, []) * op.Reshape(b_scale, []) / op.Reshape(scale, [])
    left, right, shift = (op.Cast(_zero(op, number, a), to=scale.dtype) for number in (a_zero, b_zero, zero))
    product = (op.Cast(a, to=scale.dtype) - left) * (op.Cast(b, to=scale.dtype) - right)
    return _rounded(op, product * ratio + shift, a)


def _concat_types(inputs: Sequence[Any], *, axis: int = 0, **_: object) -> Types:
    ((_kind, shape),) = standard_types("Concat", [_real(x) for x in inputs[2::3]], axis=axis)
    return [(inputs[2].dtype, shape)]


@composite("QLinearConcat", domain=MICROSOFT, infer=_concat_types)
def quantised_concat(op: Builder, scale: Value, zero: Value, *operands: Value, axis: int = 0) -> Value:
    """Quantised tensors side by side, by one scale."""
    groups = zip(operands[::3], operands[1::3], operands[2::3], strict=True)
    return _wholes(op, op.Concat(*(_reals(op, *group) for group in groups), axis=axis), scale, zero, operands[0])


@composite("QLinearSigmoid", domain=MICROSOFT, like=[0])
def quantised_sigmoid(
    op: Builder, x: Value, x_scale: Value, x_zero: Value, scale: Value, zero: Value | None = None
) -> Value:
    """Sigmoid of a quantised tensor, quantised."""
    return _wholes(op, op.Sigmoid(_reals(op, x, x_scale, x_zero)), scale, zero, x)


@composite("QLinearLeakyRelu", domain=MICROSOFT, like=[0])
def quantised_leaky_relu(
    op: Builder, x: Value, x_scale: Value, x_zero: Value, scale: Value, zero: Value | None = None,
    *, alpha: float = 0.01,
) -> Value:  # fmt: skip
    """LeakyRelu of a quantised tensor, quantised."""
    return _wholes(op, op.LeakyRelu(_reals(op, x, x_scale, x_zero), alpha=alpha), scale, zero, x)


@composite("QLinearSoftmax", domain=MICROSOFT, like=[0])
def quantised_softmax(
    op: Builder, x: Value, x_scale: Value, x_zero: Value, scale: Value, zero: Value | None = None,
    *, axis: int = -1, opset: int = 13,
) -> Value:  # fmt: skip
    """Softmax of a quantised tensor, quantised; before opset 13 over all dimensions from `axis` on."""
    numbers, shape = _reals(op, x, x_scale, x_zero), static_dims(x)
    if opset < 13:
        lead = math.prod(shape[: axis % len(shape)])
        y = op.Reshape(op.Softmax(op.Reshape(numbers, [lead, -1]), axis=1), list(shape))
    else:
        y = op.Softmax(numbers, axis=axis)
    return _wholes(op, y, scale, zero, x)


def _last(rank: int) -> list[int]:
    return [0, *range(2, rank), 1]


def _first(rank: int) -> list[int]:
    return [0, rank - 1, *range(1, rank - 1)]


def _turned(shape: Sequence[Any], order: Sequence[int]) -> list[Any]:
    return [shape[i] for i in order]


def _windowed_types(op_type: str, kernel: int | None = None, kind: int = 0) -> Callable[..., Types]:
    """Of a standard operator with windows, on operands that may have their channels last."""

    def types(inputs: Sequence[Any], *, channels_last: int = 0, **attributes: Any) -> Types:
        x, rank = inputs[0], len(inputs[0].shape)
        shape = _turned(x.shape, _first(rank)) if channels_last else list(x.shape)
        operands = [(ir.DataType.FLOAT, shape)] + ([] if kernel is None else [_real(inputs[kernel])])
        ((_, windowed),) = standard_types(op_type, operands, **attributes)
        return [(inputs[kind].dtype, ir.Shape(_turned(list(windowed), _last(rank)) if channels_last else windowed))]

    return types


def _with_channels_first(op: Builder, x: Value, channels_last: int, compute: Callable[[Value], Value]) -> Value:
    rank = len(static_dims(x))
    if not channels_last:
        return compute(x)
    return op.Transpose(compute(op.Transpose(x, perm=_first(rank))), perm=_last(rank))


@composite("QLinearAveragePool", domain=MICROSOFT, infer=_windowed_types("AveragePool"))
def quantised_average_pool(
    op: Builder, x: Value, x_scale: Value, x_zero: Value, scale: Value, zero: Value | None = None,
    *, channels_last: int = 0, **windows: Any,
) -> Value:  # fmt: skip
    """AveragePool of a quantised tensor, quantised."""

    def compute(x: Value) -> Value:
        return _wholes(op, op.AveragePool(_reals(op, x, x_scale, x_zero), **windows), scale, zero, x)

    return _with_channels_first(op, x, channels_last, compute)


@composite("QLinearGlobalAveragePool", domain=MICROSOFT, infer=_windowed_types("GlobalAveragePool"))
def quantised_global_average_pool(
    op: Builder, x: Value, x_scale: Value, x_zero: Value, scale: Value, zero: Value | None = None,
    *, channels_last: int = 0,
) -> Value:  # fmt: skip
    """GlobalAveragePool of a quantised tensor, quantised."""

    def compute(x: Value) -> Value:
        return _wholes(op, op.GlobalAveragePool(_reals(op, x, x_scale, x_zero)), scale, zero, x)

    return _with_channels_first(op, x, channels_last, compute)


@composite("QLinearConv", domain=MICROSOFT, infer=_windowed_types("Conv", 3, 7))
def quantised_conv(
    op: Builder, x: Value, x_scale: Value, x_zero: Value, w: Value, w_scale: Value, w_zero: Value, scale: Value,
    zero: Value, bias: Value | None = None,
    *, channels_last: int = 0, **windows: Any,
) -> Value:  # fmt: skip
    """QLinearConv, whose images may have their channels last."""
    operands = [x_scale, x_zero, w, w_scale, w_zero, scale, zero, bias]
    return _with_channels_first(op, x, channels_last, lambda x: op.call("", "QLinearConv", [x, *operands], windows))


@composite(
    "NhwcMaxPool",
    domain=MICROSOFT,
    infer=lambda inputs, **windows: _windowed_types("MaxPool")(inputs, channels_last=1, **windows),
)
def max_pool_channels_last(op: Builder, x: Value, **windows: Any) -> Value:
    """MaxPool of images with their channels last."""
    return _with_channels_first(op, x, 1, lambda x: op.MaxPool(x, **windows))


def _where_types(inputs: Sequence[Any], **_: object) -> Types:
    condition, x, y = inputs[0], inputs[1], inputs[4]
    return standard_types("Where", [condition, (x.dtype, x.shape), (x.dtype, y.shape)])


@composite("QLinearWhere", domain=MICROSOFT, infer=_where_types)
def quantised_where(
    op: Builder, condition: Value, x: Value, x_scale: Value, x_zero: Value, y: Value, y_scale: Value, y_zero: Value,
    scale: Value, zero: Value,
) -> Value:  # fmt: skip
    """Where of quantised tensors, quantised."""
    chosen = op.Where(condition, _reals(op, x, x_scale, x_zero), _reals(op, y, y_scale, y_zero))
    return _wholes(op, chosen, scale, zero, x)


@composite(
    "QuantizeLinear",
    domain=MICROSOFT,
    infer=lambda inputs, **_: [
        (inputs[2].dtype if len(inputs) > 2 and inputs[2] is not None else ir.DataType.UINT8, inputs[0].shape)
    ],
)
def quantize_linear(op: Builder, x: Value, scale: Value, zero: Value | None = None, *, axis: int = 1) -> Value:
    """QuantizeLinear, which onnxruntime had for more types before the standard did."""
    return op.QuantizeLinear(x, scale, zero, axis=axis)


@composite("DequantizeLinear", domain=MICROSOFT, infer=lambda inputs, **_: [(inputs[1].dtype, inputs[0].shape)])
def dequantize_linear(op: Builder, x: Value, scale: Value, zero: Value | None = None, *, axis: int = 1) -> Value:
    """DequantizeLinear, which onnxruntime had for more types before the standard did."""
    return op.DequantizeLinear(x, scale, zero, axis=axis)


def _recurrent_types(inputs: Sequence[Any], *, hidden_size: int = 0, direction: str = "forward", **_: object) -> Types:
    length, batch, _ = inputs[0].shape
    directions = 2 if direction == "bidirectional" else 1
    last = ir.Shape([directions, batch, hidden_size])
    kind = inputs[0].dtype
    return [(kind, ir.Shape([length, directions, batch, hidden_size])), (kind, last), (kind, last)]


@composite("DynamicQuantizeLSTM", domain=MICROSOFT, infer=_recurrent_types)
def dynamic_quantize_lstm(
    op: Builder, x: Value, w: Value, r: Value, b: Value | None = None, lengths: Value | None = None,
    h: Value | None = None, c: Value | None = None, p: Value | None = None, w_scale: Value | None = None,
    w_zero: Value | None = None, r_scale: Value | None = None, r_zero: Value | None = None, **attributes: Attribute,
) -> tuple[Value, ...]:  # fmt: skip
    """LSTM with quantised weights, each direction's [inputs, 4 · hidden].

    onnxruntime quantises sequences and states, too, by their range in each step. The torch provider does as well; here
    it is left out, so that there is a gradient.
    """

    def reals(weight: Value, scale: Value | None, zero: Value | None) -> Value:
        assert scale is not None and zero is not None
        scale, zero = (v if len(static_dims(v)) > 1 else op.Unsqueeze(v, [1]) for v in (scale, zero))
        numbers = op.Cast(weight, to=x.dtype) - op.Cast(op.Unsqueeze(zero, [1]), to=x.dtype)
        return op.Transpose(numbers * op.Unsqueeze(scale, [1]), perm=[0, 2, 1])

    operands = [x, reals(w, w_scale, w_zero), reals(r, r_scale, r_zero), b, lengths, h, c, p]
    return op.call("", "LSTM", operands, attributes, 3)


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


def _gathered_types(inputs: Sequence[Any], *, gather_axis: int = 0, bits: int = 4, **_: object) -> Types:
    data, indices, scales = inputs[:3]
    ((_kind, shape),) = standard_types("Gather", [_real(data), indices], axis=gather_axis)
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
    if gathered == blocks:
        raise NoBodyError("a table that is gathered along its blocks", "use CPUExecutionProvider")
    work, index_rank = scales.dtype, len(_dims(indices))
    if not packed:  # the standard gathers no numbers of four bits
        data = op.Cast(data, to=ir.DataType.INT8)
        zero = zero if zero is None else op.Cast(zero, to=ir.DataType.INT8)
    parts = [op.Gather(v, indices, axis=gathered) for v in (data, scales)]
    whole = zero if zero is None else op.Gather(zero, indices, axis=gathered)
    numbers = unpacked(op, parts[0], bits) if packed else parts[0]
    numbers = op.Cast(numbers, to=work)
    place = blocks + index_rank - 1 if blocks > gathered else blocks
    size = _dims(numbers)[place]
    if whole is not None:
        if packed:  # padded to whole bytes
            count = _dims(parts[1])[-1]
            whole = op.Slice(unpacked(op, whole, bits), [0], [count], [-1])
        numbers = numbers - spread(op, op.Cast(whole, to=work), place, block_size, size)
    elif packed:
        numbers = numbers - float(1 << (bits - 1))
    return numbers * spread(op, parts[1], place, block_size, size)


def unpacked(op: Builder, packed: Value, bits: int) -> Value:
    """The numbers of `bits` bits in each byte, the lowest first, along the last axis."""
    if bits == 8:
        return packed
    pieces = [
        op.BitwiseAnd(op.BitShift(packed, op.const(shift, ir.DataType.UINT8), direction="RIGHT"),
                      op.const((1 << bits) - 1, ir.DataType.UINT8)) for shift in range(0, 8, bits)
    ]  # fmt: skip
    *lead, last = _dims(packed)
    rows = [0] * len(lead) if -1 in lead else lead
    return op.Reshape(op.Concat(*(op.Unsqueeze(v, [-1]) for v in pieces), axis=-1), [*rows, last * len(pieces)])


def _dims(value: Value) -> list[int]:
    """The sizes of a value, -1 for those that are open."""
    return [dim if isinstance(dim, int) else -1 for dim in value.shape or ()]


def spread(op: Builder, x: Value, axis: int, block: int, size: int) -> Value:
    """Each element `block` times along an axis, `size` altogether."""
    shape = _dims(x)
    before, behind = shape[:axis], shape[axis + 1 :]
    wide = op.Expand(
        op.Unsqueeze(x, [axis + 1]),
        [*(max(dim, 1) for dim in before), shape[axis], block, *(max(dim, 1) for dim in behind)],
    )
    flat = op.Reshape(wide, [*([0] * axis if -1 in before else before), shape[axis] * block, *behind])
    return op.Slice(flat, [0], [size], [axis])


def _embedding_types(inputs: Sequence[Any], **_: object) -> Types:
    ids, words, scale = inputs[0], inputs[2], inputs[8]
    whole = ir.Shape([*ids.shape, words.shape[1]])
    return [(scale.dtype, whole), (ir.DataType.INT32, ir.Shape([ids.shape[0]]))]


@composite("QEmbedLayerNormalization", domain=MICROSOFT, infer=_embedding_types)
def quantised_embed_layer_normalization(
    op: Builder, ids: Value, segments: Value, words: Value, positions: Value, segment_table: Value, gamma: Value,
    beta: Value, mask: Value, words_scale: Value, positions_scale: Value, segments_scale: Value, gamma_scale: Value,
    beta_scale: Value, words_zero: Value, positions_zero: Value, segments_zero: Value, gamma_zero: Value,
    beta_zero: Value,
    *, epsilon: float = 1e-12,
) -> tuple[Value, Value]:  # fmt: skip
    """EmbedLayerNormalization with quantised tables."""
    total = _reals(op, op.Gather(words, ids), words_scale, words_zero)
    places = op.Slice(positions, [0], [static_dims(ids)[1]], [0])
    total = total + _reals(op, places, positions_scale, positions_zero)
    if segments is not None:
        total = total + _reals(op, op.Gather(segment_table, segments), segments_scale, segments_zero)
    counts = op.const([0] * static_dims(ids)[0], ir.DataType.INT32)
    if mask is not None:
        counts = op.ReduceSum(op.Cast(mask, to=ir.DataType.INT32), [1], keepdims=0)
    scale, shift = _reals(op, gamma, gamma_scale, gamma_zero), _reals(op, beta, beta_scale, beta_zero)
    return op.LayerNormalization(total, scale, shift, epsilon=epsilon), op.Identity(counts)
