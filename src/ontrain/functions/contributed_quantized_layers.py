"""onnxruntime's products, convolutions and layers of whole numbers that stand for reals, in standard operators.

Source: onnxruntime, docs/ContribOperators.md; where it is silent, what the CPU kernels do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir

from ontrain.functions.contributed import MICROSOFT
from ontrain.functions.contributed_quantized import reals, wholes
from ontrain.functions.contributed_types import Types, real, standard_types
from ontrain.functions.registry import composite
from ontrain.graph import Builder, static_dims
from ontrain.operators import Attribute, Value

__all__: list[str] = []


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
        operands = [(ir.DataType.FLOAT, shape)] + ([] if kernel is None else [real(inputs[kernel])])
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
        return wholes(op, op.AveragePool(reals(op, x, x_scale, x_zero), **windows), scale, zero, x)

    return _with_channels_first(op, x, channels_last, compute)


@composite("QLinearGlobalAveragePool", domain=MICROSOFT, infer=_windowed_types("GlobalAveragePool"))
def quantised_global_average_pool(
    op: Builder, x: Value, x_scale: Value, x_zero: Value, scale: Value, zero: Value | None = None,
    *, channels_last: int = 0,
) -> Value:  # fmt: skip
    """GlobalAveragePool of a quantised tensor, quantised."""

    def compute(x: Value) -> Value:
        return wholes(op, op.GlobalAveragePool(reals(op, x, x_scale, x_zero)), scale, zero, x)

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
    total = reals(op, op.Gather(words, ids), words_scale, words_zero)
    places = op.Slice(positions, [0], [static_dims(ids)[1]], [0])
    total = total + reals(op, places, positions_scale, positions_zero)
    if segments is not None:
        total = total + reals(op, op.Gather(segment_table, segments), segments_scale, segments_zero)
    counts = op.const([0] * static_dims(ids)[0], ir.DataType.INT32)
    if mask is not None:
        counts = op.ReduceSum(op.Cast(mask, to=ir.DataType.INT32), [1], keepdims=0)
    scale, shift = reals(op, gamma, gamma_scale, gamma_zero), reals(op, beta, beta_scale, beta_zero)
    return op.LayerNormalization(total, scale, shift, epsilon=epsilon), op.Identity(counts)
