"""What is done to each channel of a convolution's result, done to its weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ontrain.graph import Builder, role_of
from ontrain.operators import attribute_of, each
from ontrain.passes.fusion import Fusion, Match, Pattern, fail
from ontrain.passes.inference.weights import Weights, weights_of

__all__ = ["FoldBatchNormalization", "FoldChannelArithmetic"]

Array = np.ndarray[Any, Any]


class _Folding(Fusion):
    """A fusion of a convolution and an affine map of each channel.

        Conv(x, W, b) · s + t   →   Conv(x, W · s, b · s + t)

    Subclasses say what s and t are.
    """

    def begin(self, graph: ir.Graph) -> None:
        """Find the convolutions, and their weights' values."""
        self._weights = weights_of(graph)
        super().begin(graph)

    def check(self, match: Match) -> None:
        """Look for weights whose values are known."""
        w, b = match["w"], match.values["b"]
        if not self._weights.holds(w) or (b is not None and not self._weights.holds(b)):
            fail("the weights of the convolution are computed, or fed")

    def folded(
        self, op: Builder, match: Match, operands: dict[str, ir.Value | None], scale: Array, shift: Array
    ) -> list[ir.Value | None]:
        """Emit the convolution with the map of its channels in its weights; both arrays are double, [channels]."""
        conv, weights = match.nodes["conv"], self._weights
        x, w, b = operands["x"], operands["w"], operands["b"]
        assert w is not None
        bias = weights.doubles(b) if b is not None else 0.0
        dtype = weights.array(w).dtype
        scaled = weights.add(op, w, _scaled(conv, weights.doubles(w), scale).astype(dtype))
        shifted = (bias * scale + shift).astype(dtype)
        shifted_bias = weights.add(op, b, shifted) if b is not None and weights.is_weight(b) else None
        if shifted_bias is None:
            name = (w.name or "").removesuffix("weight").removesuffix(".")
            shifted_bias = weights.add_named(op, f"{name}.bias", shifted)
        copy = ir.Node("", conv.op_type, [x, scaled, shifted_bias], conv.attributes.values(), num_outputs=1)
        return [*each(op.add(copy, [match.node.outputs[0].name]))]


class FoldBatchNormalization(_Folding):
    """Fold batch normalisation by running statistics into the convolution before it.

        Conv(x, W, b) ─ BatchNormalization(γ, β, μ, σ²)   →   Conv(x, W · s, (b − μ) · s + β),  s = γ / √(σ² + ε)

    Equal because both are linear in each channel; the weights are multiplied in double precision and rounded once.
    Left alone: statistics of the batch, weights that are computed, and a convolution whose result others read.
    """

    patterns = tuple(
        Pattern("BatchNormalization", (Pattern(kind, ("x", "w", "b?"), name="conv"), "scale", "shift", "mean", "var"))
        for kind in ("Conv", "ConvTranspose")
    )

    def check(self, match: Match) -> None:
        """Look for running statistics."""
        super().check(match)
        if match.node.attributes.get_int("training_mode", 0):
            fail("it normalises by the batch")
        if not all(self._weights.holds(match[name]) for name in ("scale", "shift", "mean", "var")):
            fail("its statistics or its scale are computed, or fed")

    def replace(self, op: Builder, match: Match, operands: dict[str, ir.Value | None]) -> list[ir.Value | None]:
        """Emit the convolution with folded weights."""
        numbers = {name: self._weights.doubles(match[name]) for name in ("scale", "shift", "mean", "var")}
        scale = numbers["scale"] / np.sqrt(numbers["var"] + float(attribute_of(match.node, "epsilon")))
        return self.folded(op, match, operands, scale, numbers["shift"] - numbers["mean"] * scale)


class FoldChannelArithmetic(_Folding):
    """Fold products and sums with one number a channel into the convolution before them.

        Conv(x, W, b) · s   →   Conv(x, W · s, b · s)
        Conv(x, W, b) + t   →   Conv(x, W, b + t)

    Equal as in `FoldBatchNormalization`. Left alone: numbers that differ from place to place, or that broadcast the
    result to another shape.
    """

    patterns = tuple(
        Pattern(kind, (Pattern("Conv", ("x", "w", "b?"), name="conv"), "number"), commutes=True)
        for kind in ("Mul", "Add")
    )

    def check(self, match: Match) -> None:
        """Look for one number a channel."""
        super().check(match)
        number, shape = match["number"], match.nodes["conv"].outputs[0].shape
        if not self._weights.holds(number) or shape is None:
            fail("what the result meets is computed, or fed")
        if number.is_graph_input() and not role_of(number).resident:
            fail("what the result meets is fed")
        if self._by_channel(match) is None:
            fail("what the result meets is not one number a channel")

    def replace(self, op: Builder, match: Match, operands: dict[str, ir.Value | None]) -> list[ir.Value | None]:
        """Emit the convolution with folded weights."""
        number = self._by_channel(match)
        assert number is not None
        one, zero = np.ones_like(number), np.zeros_like(number)
        is_product = match.node.op_type == "Mul"
        return self.folded(op, match, operands, *((number, zero) if is_product else (one, number)))

    def _by_channel(self, match: Match) -> Array | None:
        """The number for each channel, None if it differs within a channel or has an axis that the result lacks."""
        rank, channels = len(match.nodes["conv"].outputs[0].shape or ()), _channels(self._weights, match)
        array = self._weights.doubles(match["number"])
        if array.ndim > rank:
            return None
        shape = (1,) * (rank - array.ndim) + array.shape
        is_by_channel = shape[1] in (1, channels) and all(d == 1 for axis, d in enumerate(shape) if axis != 1)
        return np.broadcast_to(array.reshape(-1), (channels,)) if is_by_channel else None


def _channels(weights: Weights, match: Match) -> int:
    return int(weights.array(match["w"]).shape[0])


def _scaled(conv: ir.Node, w: Array, scale: Array) -> Array:
    """The weights with each channel of the result scaled: [M, C / g, …], of a ConvTranspose [C, M / g, …]."""
    rest = (1,) * (w.ndim - 2)
    if conv.op_type == "Conv":
        return np.asarray(w * scale.reshape(-1, 1, *rest))
    groups = conv.attributes.get_int("group", 1)
    assert groups is not None
    by_group = w.reshape(groups, -1, *w.shape[1:]) * scale.reshape(groups, 1, -1, *rest)
    return np.asarray(by_group.reshape(w.shape))
