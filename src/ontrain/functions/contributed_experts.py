"""onnxruntime's mixtures of experts, in standard operators.

Source: onnxruntime, docs/ContribOperators.md; where it is silent, what the CPU kernels do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ontrain.functions.contributed import MICROSOFT
from ontrain.functions.contributed_blocks import spread, unpacked
from ontrain.functions.registry import NoBodyError, composite
from ontrain.graph import Builder, static_dims
from ontrain.operators import Value

__all__: list[str] = []

_WAY_OUT = "use CPUExecutionProvider"


@dataclass(frozen=True)
class _Layer:
    """A matrix [experts, to, from] for each expert, and biases [experts, to]."""

    weight: Value
    bias: Value | None

    def __call__(self, op: Builder, rows: Value) -> Value:
        result = op.MatMul(rows, op.Transpose(self.weight, perm=[0, 2, 1]))
        return result if self.bias is None else result + op.Unsqueeze(self.bias, [1])


@dataclass(frozen=True)
class _Activation:
    """What stands between the layers of an expert; `fusion` says how the first layer holds gates and values."""

    kind: str
    fusion: int
    alpha: float
    beta: float
    limit: float

    def __call__(self, op: Builder, rows: Value, first: _Layer, third: _Layer | None) -> Value:
        """The inner rows [experts, rows, inner] of all rows."""
        inner = first(op, rows)
        if self.kind == "swiglu":
            return self._gated(op, *self._halves(op, inner, third, rows))
        inner = self._of(op, inner)
        return inner if third is None else inner * third(op, rows)

    def _of(self, op: Builder, x: Value) -> Value:
        if self.kind == "gelu":
            return op.Gelu(x, approximate="tanh")
        operator = {"relu": "Relu", "silu": "Swish", "identity": "Identity"}.get(self.kind)
        if operator is None:
            raise NoBodyError(f"experts with the activation {self.kind!r}", _WAY_OUT)
        result: Value = getattr(op, operator)(x)
        return result

    def _halves(self, op: Builder, inner: Value, third: _Layer | None, rows: Value) -> tuple[Value, Value]:
        if self.fusion == 0:
            if third is None:
                raise NoBodyError("SwiGLU without the third layer", "give fc3_experts_weights, or swiglu_fusion=1")
            return inner, third(op, rows)
        width = static_dims(inner)[-1]
        if self.fusion == 1:
            return op.Slice(inner, [0], [width], [-1], [2]), op.Slice(inner, [1], [width], [-1], [2])
        return op.Slice(inner, [0], [width // 2], [-1]), op.Slice(inner, [width // 2], [width], [-1])

    def _gated(self, op: Builder, gate: Value, value: Value) -> Value:
        if math.isfinite(self.limit):
            most, least = op.const(self.limit, gate.dtype), op.const(-self.limit, gate.dtype)
            gate, value = op.Min(gate, most), op.Clip(value, least, most)
        return gate * op.Sigmoid(gate * self.alpha) * (value + self.beta)


def _weights(
    op: Builder, router: Value, mixing: Value | None, k: int, dtype: ir.DataType, *, normalised: bool
) -> Value:  # fmt: skip
    """What each expert counts for each row [rows, experts]: nothing but for the k that the router prefers."""
    shares = op.Softmax(router, axis=-1)
    values, places = op.TopK(shares, [k], axis=-1, outputs=2)
    if mixing is not None:
        values = op.GatherElements(mixing, places, axis=-1)
    if normalised:
        values = values / op.ReduceSum(values, [-1], keepdims=1)
    nothing = op.Expand(op.const(0.0, dtype), list(static_dims(router)))
    return op.ScatterElements(nothing, places, values, axis=-1)


def _mixed(
    op: Builder, x: Value, weights: Value, first: _Layer, second: _Layer, third: _Layer | None, activation: _Activation
) -> Value:
    """Each row through all experts; those that count nothing for it are weighed by zero."""
    rows = op.Reshape(x, [1, -1, static_dims(x)[-1]])
    outer = second(op, activation(op, rows, first, third))
    weighed = outer * op.Reshape(op.Transpose(weights, perm=[1, 0]), [static_dims(weights)[-1], -1, 1])
    return op.Reshape(op.ReduceSum(weighed, [0], keepdims=0), list(static_dims(x)))


@composite("MoE", domain=MICROSOFT, like=[0])
def mixture_of_experts(
    op: Builder, x: Value, router: Value, first: Value, first_bias: Value | None, second: Value,
    second_bias: Value | None = None, third: Value | None = None, third_bias: Value | None = None, *, k: int = 1,
    activation_type: str = "relu", normalize_routing_weights: int = 0, use_sparse_mixer: int = 0,
    swiglu_fusion: int = 0, activation_alpha: float = 1.0, activation_beta: float = 0.0,
    swiglu_limit: float = math.inf,
) -> Value:  # fmt: skip
    """Each row through the k experts that its router prefers, weighed by the router's softmax."""
    if use_sparse_mixer:
        raise NoBodyError("a sparse mixer", _WAY_OUT)
    weights = _weights(op, router, None, k, x.dtype, normalised=bool(normalize_routing_weights))
    activation = _Activation(activation_type, swiglu_fusion, activation_alpha, activation_beta, swiglu_limit)
    gate = None if third is None else _Layer(third, third_bias)
    return _mixed(op, x, weights, _Layer(first, first_bias), _Layer(second, second_bias), gate, activation)


def _whole_numbers(
    op: Builder, packed: Value, scale: Value | None, zero: Value | None, bits: int, block: int, dtype: ir.DataType
) -> Value:
    """Weights [experts, to, from] of their packed numbers; scales and zero points are of rows, or of blocks of them."""
    if scale is None:
        raise NoBodyError("quantised experts without scales", _WAY_OUT)
    numbers = op.Cast(unpacked(op, packed, bits), to=scale.dtype)
    size = static_dims(numbers)[-1]

    def wide(value: Value) -> Value:
        return spread(op, value, 2, block, size) if block > 0 else op.Unsqueeze(value, [2])

    if zero is None:
        numbers = numbers - float(1 << (bits - 1))
    else:
        count = static_dims(scale)[-1]
        points = op.Slice(unpacked(op, zero, bits), [0], [count], [-1])
        numbers = numbers - wide(op.Cast(points, to=scale.dtype))
    return op.Cast(numbers * wide(scale), to=dtype)


@composite("QMoE", domain=MICROSOFT, like=[0])
def quantised_mixture_of_experts(
    op: Builder, x: Value, router: Value, first: Value, first_scale: Value | None, first_bias: Value | None,
    second: Value, second_scale: Value | None, second_bias: Value | None = None, third: Value | None = None,
    third_scale: Value | None = None, third_bias: Value | None = None, first_zero: Value | None = None,
    second_zero: Value | None = None, third_zero: Value | None = None, mixing: Value | None = None,
    *others: Value | None, k: int = 1, activation_type: str = "relu", normalize_routing_weights: int = 0,
    use_sparse_mixer: int = 0, swiglu_fusion: int = 0, activation_alpha: float = 1.0, activation_beta: float = 0.0,
    swiglu_limit: float = math.inf, expert_weight_bits: int = 4, fc1_expert_weight_bits: int = 0,
    fc2_expert_weight_bits: int = 0, fc3_expert_weight_bits: int = 0, block_size: int = 0, quant_type: str = "int",
    weights_prepacked: int = 0, **speed: object,
) -> Value:  # fmt: skip
    """MoE whose weights are packed whole numbers.

    The router's weights are normalised over the k experts, whatever the attribute says, unless weights of their own are
    given: so the CPU kernel does. Activations stay floats; the CPU kernel rounds them for blocks of eight-bit weights.
    """
    if quant_type != "int" or weights_prepacked > 0 or any(other is not None for other in others):
        raise NoBodyError("weights in floats of few bits, or packed for a GPU", _WAY_OUT)
    normalised = mixing is None or bool(normalize_routing_weights)
    weights = _weights(op, router, mixing, k, x.dtype, normalised=normalised)

    def layer(parts: Sequence[Value | None], bias: Value | None, bits: int) -> _Layer:
        packed, scale, zero = parts
        assert packed is not None
        return _Layer(_whole_numbers(op, packed, scale, zero, bits or expert_weight_bits, block_size, x.dtype), bias)

    activation = _Activation(activation_type, swiglu_fusion, activation_alpha, activation_beta, swiglu_limit)
    gate = None if third is None else layer((third, third_scale, third_zero), third_bias, fc3_expert_weight_bits)
    return _mixed(
        op, x, weights, layer((first, first_scale, first_zero), first_bias, fc1_expert_weight_bits),
        layer((second, second_scale, second_zero), second_bias, fc2_expert_weight_bits), gate, activation,
    )  # fmt: skip
