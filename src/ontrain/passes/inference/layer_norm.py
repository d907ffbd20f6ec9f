"""Layer normalisation that a file spells out, as one operator again."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from ontrain.graph import Builder, is_float
from ontrain.passes.inference.makers import is_over_last_axis, is_private, maker_of, number_of
from ontrain.passes.inference.weights import Weights, weights_of
from ontrain.passes.infra import RewritePass, left_alone

__all__ = ["FuseLayerNormalization"]


@dataclass(frozen=True)
class _Norm:
    """A layer normalisation: old values."""

    x: ir.Value
    scale: ir.Value
    shift: ir.Value
    epsilon: float


class FuseLayerNormalization(RewritePass):
    """Turn the formula of layer normalisation over the last axis into the operator.

        d = x − ReduceMean(x);  d / Sqrt(ReduceMean(d²) + ε) · γ + β   →   LayerNormalization(x, γ, β, epsilon=ε)

    The square is Pow(d, 2) or d · d. Equal by the definition of the operator. Left alone: a formula a part of which is
    read elsewhere, other axes, and a scale or shift that is no vector.
    """

    level = 2

    def begin(self, graph: ir.Graph) -> None:
        """Find the last node of each formula."""
        weights, self._norms = weights_of(graph), dict[ir.Node, _Norm]()
        for node in graph:
            norm = _match(node, weights)
            if norm is not None:
                self._norms[node] = norm
        self._values: dict[ir.Value, ir.Value] = {}
        self._wanted = {v for norm in self._norms.values() for v in (norm.x, norm.scale, norm.shift)}

    def has_work(self, graph: ir.Graph) -> bool:
        """Whether there is a formula."""
        return bool(self._norms)

    def rewrite(self, op: Builder, node: ir.Node, inputs: list[ir.Value | None]) -> list[ir.Value | None] | None:
        """Replace the end of a formula; the rest of it goes, as nobody reads it."""
        for old, new in zip(node.inputs, inputs, strict=True):
            if old in self._wanted and new is not None:
                self._values[old] = new
        norm = self._norms.get(node)
        if norm is None:
            return None
        x, scale, shift = (self._values[value] for value in (norm.x, norm.scale, norm.shift))
        return [op.LayerNormalization(x, scale, shift, axis=-1, epsilon=norm.epsilon)]


def _match(last: ir.Node, weights: Weights) -> _Norm | None:
    """The normalisation that a sum ends, if it does."""
    if last.domain or last.op_type != "Add" or not is_float(last.outputs[0]):
        return None
    for scaled, shift in (last.inputs, last.inputs[::-1]):
        product = maker_of(scaled, "Mul")
        for normal, scale in () if product is None else (product.inputs, product.inputs[::-1]):
            quotient = maker_of(normal, "Div")
            if product is None or quotient is None or scale is None or shift is None:
                continue
            normalised = _normal(quotient, weights)
            if normalised is None:
                continue
            x, epsilon, inner = normalised
            if not _is_vector(scale) or not _is_vector(shift):
                left_alone("scale or shift is no vector")
            elif not is_private([product, quotient, *inner], last):
                left_alone("a part of the formula is read elsewhere")
            else:
                return _Norm(x, scale, shift, epsilon)
    return None


def _normal(quotient: ir.Node, weights: Weights) -> tuple[ir.Value, float, list[ir.Node]] | None:
    """What d / Sqrt(ReduceMean(d²) + ε) normalises, ε, and the nodes of the formula."""
    d, root = quotient.inputs
    centred, sqrt = maker_of(d, "Sub"), maker_of(root, "Sqrt")
    total = maker_of(sqrt.inputs[0], "Add") if sqrt is not None else None
    if centred is None or sqrt is None or total is None:
        return None
    for variance, epsilon in (total.inputs, total.inputs[::-1]):
        mean_of_squares, number = maker_of(variance, "ReduceMean"), number_of(epsilon, weights)
        if mean_of_squares is None or number is None:
            continue
        square, (x, mean) = mean_of_squares.inputs[0], centred.inputs
        squaring = square.producer() if square is not None else None
        average = maker_of(mean, "ReduceMean")
        if squaring is None or average is None or x is None or average.inputs[0] is not x:
            continue
        if _squares(squaring, d, weights) and is_over_last_axis(average) and is_over_last_axis(mean_of_squares):
            return x, number, [centred, sqrt, total, mean_of_squares, squaring, average]
    return None


def _squares(node: ir.Node, d: ir.Value | None, weights: Weights) -> bool:
    if node.domain or node.inputs[0] is not d:
        return False
    if node.op_type == "Mul":
        return node.inputs[1] is d
    return node.op_type == "Pow" and number_of(node.inputs[1], weights) == 2


def _is_vector(value: ir.Value) -> bool:
    return value.shape is not None and len(value.shape) == 1
