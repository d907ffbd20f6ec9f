"""Operators of onnxruntime's own domain that exported and optimised files hold, in standard operators.

Source: onnxruntime, docs/ContribOperators.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from ontrain.functions.contributed_types import Types, standard_types
from ontrain.functions.registry import composite
from ontrain.graph import Builder, schema_of, static_dims
from ontrain.operators import Value

__all__ = ["product_types"]

MICROSOFT = "com.microsoft"


@composite("Gelu", domain=MICROSOFT, like=[0])
def gelu(op: Builder, x: Value) -> Value:
    """x · Φ(x)."""
    return op.Gelu(x)


@composite("FastGelu", domain=MICROSOFT, like=[0])
def fast_gelu(op: Builder, x: Value, bias: Value | None = None) -> Value:
    """The tanh approximation of Gelu, of x + bias."""
    return op.Gelu(x if bias is None else x + bias, approximate="tanh")


@composite("BiasGelu", domain=MICROSOFT, like=[0])
def bias_gelu(op: Builder, x: Value, bias: Value) -> Value:
    """Gelu of x + bias."""
    return op.Gelu(x + bias)


@composite("QuickGelu", domain=MICROSOFT, like=[0])
def quick_gelu(op: Builder, x: Value, *, alpha: float = 1.702) -> Value:
    """x · sigmoid(alpha · x)."""
    return x * op.Sigmoid(x * alpha)


def _split_types(inputs: Sequence[Any]) -> Types:
    *lead, last = inputs[0].shape
    return [(inputs[0].dtype, ir.Shape([*lead, last // 2 if isinstance(last, int) else None]))]


@composite("BiasSplitGelu", domain=MICROSOFT, infer=_split_types)
def bias_split_gelu(op: Builder, x: Value, bias: Value) -> Value:
    """The left half of x + bias times Gelu of the right half, along the last axis."""
    left, right = op.Split(x + bias, axis=-1, num_outputs=2, outputs=2)
    return left * op.Gelu(right)


def product_types(inputs: Sequence[Any], **a: Any) -> Types:
    """Return what a product is of operands whose axes may be in another order."""
    operands = [
        (value.dtype, [value.shape[i] for i in _order(len(value.shape), *how)])
        for value, how in zip(inputs, _flags(**a), strict=True)
    ]
    return standard_types("MatMul", operands)


def _flags(
    *, transA: int = 0, transB: int = 0, transBatchA: int = 0, transBatchB: int = 0, **_: object
) -> tuple[tuple[int, int], tuple[int, int]]:
    return (transA, transBatchA), (transB, transBatchB)


def _order(rank: int, swapped: int, batched: int) -> list[int]:
    """The axes of an operand in the order of a product: the batch axes may come second, the last two swapped."""
    axes = [*range(1, rank - 1), 0, rank - 1] if batched and rank > 2 else list(range(rank))
    return [*axes[:-2], axes[-1], axes[-2]] if swapped and rank > 1 else axes


@composite("FusedMatMul", domain=MICROSOFT, infer=product_types)
def fused_matmul(
    op: Builder, a: Value, b: Value,
    *, alpha: float = 1.0, transA: int = 0, transB: int = 0, transBatchA: int = 0, transBatchB: int = 0,
) -> Value:  # fmt: skip
    """alpha · a b, with the operands' axes in another order."""
    flags = _flags(transA=transA, transB=transB, transBatchA=transBatchA, transBatchB=transBatchB)
    left, right = (
        v if (order := _order(len(v.shape), *how)) == sorted(order) else op.Transpose(v, perm=order)
        for v, how in zip((a, b), flags, strict=True)
    )
    y = op.MatMul(left, right)
    return y if alpha == 1 else y * alpha


@composite(
    "FusedGemm",
    domain=MICROSOFT,
    infer=lambda inputs, transA=0, transB=0, **_: [
        (inputs[0].dtype, ir.Shape([inputs[0].shape[transA], inputs[1].shape[1 - transB]]))
    ],
)
def fused_gemm(
    op: Builder, a: Value, b: Value, c: Value | None = None,
    *, alpha: float = 1.0, beta: float = 1.0, transA: int = 0, transB: int = 0, activation: str = "",
    activation_alpha: float | None = None, activation_beta: float | None = None, activation_gamma: float | None = None,
) -> Value:  # fmt: skip
    """An activation of a Gemm."""
    y = op.Gemm(a, b, c, alpha=alpha, beta=beta, transA=transA, transB=transB)
    rest = {"alpha": activation_alpha, "beta": activation_beta, "gamma": activation_gamma}
    known = schema_of(activation)
    taken = () if known is None else known.attributes
    return op.call("", activation, [y], {k: v for k, v in rest.items() if k in taken}) if activation else y


def _conv_types(inputs: Sequence[Any], **attributes: Any) -> Types:
    windows = {name: value for name, value in attributes.items() if not name.startswith("activation")}
    return standard_types("Conv", inputs[:2], **windows)


@composite("FusedConv", domain=MICROSOFT, infer=_conv_types)
def fused_conv(
    op: Builder, x: Value, w: Value, b: Value | None = None, z: Value | None = None,
    *, activation: str = "", activation_params: Sequence[float] = (), **windows: Any,
) -> Value:  # fmt: skip
    """An activation of a convolution plus z; its parameters come in the order of alpha and beta, or least and most."""
    y = op.Conv(x, w, b, **windows)
    y = y if z is None else y + z
    if activation == "Clip":
        return op.Clip(y, *activation_params)
    parameters = dict(zip(("alpha", "beta"), activation_params, strict=False))
    return op.call("", activation, [y], parameters) if activation else y


def _norm_types(inputs: Sequence[Any], *, axis: int = -1, **_: object) -> Types:
    x = inputs[0]
    rank = len(x.shape)
    reduced = ir.Shape([1 if i >= axis % rank else d for i, d in enumerate(x.shape)])
    return [(x.dtype, x.shape), (ir.DataType.FLOAT, reduced)]


@composite("SimplifiedLayerNormalization", domain="", infer=_norm_types)
def simplified_layer_normalization(
    op: Builder, x: Value, scale: Value, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> tuple[Value, Value]:
    """RMSNormalization, and the inverse root of the mean square. onnxruntime keeps it in the standard's domain."""
    axes = list(range(axis % len(static_dims(x)), len(static_dims(x))))
    wide = op.Cast(x, to=ir.DataType.FLOAT) if stash_type == 1 and x.dtype != ir.DataType.DOUBLE else x
    inverse = op.Reciprocal(op.Sqrt(op.ReduceMean(wide * wide, axes, keepdims=1) + epsilon))
    y = op.RMSNormalization(x, scale, axis=axis, epsilon=epsilon, stash_type=stash_type)
    return y, op.Cast(inverse, to=ir.DataType.FLOAT)


def _skip_types(inputs: Sequence[Any], **_: object) -> Types:
    x = inputs[0]
    moments = (ir.DataType.FLOAT, ir.Shape([*list(x.shape)[:-1], 1]))
    return [(x.dtype, x.shape), moments, moments, (x.dtype, x.shape)]


def _joined(x: Value, *more: Value | None) -> Value:
    for summand in more:
        x = x if summand is None else x + summand
    return x


@composite("SkipLayerNormalization", domain=MICROSOFT, infer=_skip_types)
def skip_layer_normalization(
    op: Builder, x: Value, skip: Value, gamma: Value, beta: Value | None = None, bias: Value | None = None,
    *, epsilon: float = 1e-12,
) -> tuple[Value, Value, Value, Value]:  # fmt: skip
    """LayerNormalization over the last axis of x + skip + bias; also gives its moments and that sum."""
    total = _joined(x, skip, bias)
    y, mean, inverse = op.LayerNormalization(total, gamma, beta, epsilon=epsilon, outputs=3)
    return y, mean, inverse, op.Identity(total)


@composite("SkipSimplifiedLayerNormalization", domain=MICROSOFT, infer=_skip_types)
def skip_simplified_layer_normalization(
    op: Builder, x: Value, skip: Value, gamma: Value, bias: Value | None = None, *, epsilon: float = 1e-12
) -> tuple[Value, Value, Value, Value]:
    """RMSNormalization over the last axis of x + skip + bias, whose mean is 0; also gives its moments and that sum."""
    total = _joined(x, skip, bias)
    y, inverse = op.call("", "SimplifiedLayerNormalization", [total, gamma], {"epsilon": epsilon}, 2)
    mean = op.Expand(op.const(0.0), [*static_dims(x)[:-1], 1])
    return y, mean, inverse, op.Identity(total)


def _embed_types(inputs: Sequence[Any], **_: object) -> Types:
    ids, words = inputs[0], inputs[2]
    whole = (words.dtype, ir.Shape([*ids.shape, words.shape[1]]))
    return [whole, (ir.DataType.INT32, ir.Shape([ids.shape[0]])), whole]


@composite("EmbedLayerNormalization", domain=MICROSOFT, infer=_embed_types)
def embed_layer_normalization(
    op: Builder, ids: Value, segments: Value, words: Value, positions: Value, segment_table: Value, gamma: Value,
    beta: Value, mask: Value | None = None, position_ids: Value | None = None,
    *, epsilon: float = 1e-12, mask_index_type: int = 0,
) -> tuple[Value, Value, Value]:  # fmt: skip
    """LayerNormalization of the sum of word, position and segment embeddings; also the mask's sums and that sum."""
    length = static_dims(ids)[1]
    place = op.Slice(positions, [0], [length], [0]) if position_ids is None else op.Gather(positions, position_ids)
    total = op.Gather(words, ids) + place
    if segments is not None:
        total = total + op.Gather(segment_table, segments)
    counts = op.const([0] * static_dims(ids)[0], ir.DataType.INT32)
    if mask is not None:
        counts = op.ReduceSum(op.Cast(mask, to=ir.DataType.INT32), [1], keepdims=0)
    return op.LayerNormalization(total, gamma, beta, epsilon=epsilon), op.Identity(counts), op.Identity(total)


@composite("GroupNorm", domain=MICROSOFT, like=[0])
def group_norm(
    op: Builder, x: Value, gamma: Value, beta: Value,
    *, activation: int = 0, channels_last: int = 1, epsilon: float = 1e-5, groups: int = 32,
) -> Value:  # fmt: skip
    """GroupNormalization of x [N, …, C] (or [N, C, …]), then x · sigmoid(x) if `activation` is 1."""
    rank = len(static_dims(x))
    moved = op.Transpose(x, perm=[0, rank - 1, *range(1, rank - 1)]) if channels_last else x
    scale, bias = (op.Cast(v, to=x.dtype) for v in (gamma, beta))
    y = op.GroupNormalization(moved, scale, bias, num_groups=groups, epsilon=epsilon)
    y = y * op.Sigmoid(y) if activation else y
    return op.Transpose(y, perm=[0, *range(2, rank), 1]) if channels_last else op.Identity(y)
