"""Derivatives that a graph itself asks for."""

from __future__ import annotations

import onnx_ir as ir

from ontrain.autodiff.driver import differentiate
from ontrain.functions import DERIVATIVE, VJP, vjp_operands
from ontrain.graph import DOMAIN, Builder, rebuild, static_dims

__all__ = ["asks_for_derivatives", "is_derivative", "with_derivatives"]


def is_derivative(node: ir.Node) -> bool:
    """Return whether a node stands for a derivative, which is spelled out before a provider sees the graph."""
    return node.domain == DOMAIN and node.op_type in (DERIVATIVE, VJP)


def asks_for_derivatives(graph: ir.Graph) -> bool:
    """Return whether a node of the graph is a derivative of a value."""
    return any(is_derivative(node) for node in graph)


def with_derivatives(model: ir.Model) -> ir.Model:
    """Return a graph of concrete shapes with its derivatives, of the sum of each value, spelled out.

    Raises:
        GradientError: an operator on the way has no gradient.
    """

    def rewrite(op: Builder, node: ir.Node, inputs: list[ir.Value | None]) -> list[ir.Value | None] | None:
        if not is_derivative(node):
            return None
        values = [v for v in inputs if v is not None]
        pairs, points = (
            vjp_operands(node, values) if node.op_type == VJP
            else ([(values[0], _filled(op, 1.0, values[0]))], values[1:])
        )  # fmt: skip
        adjoints = differentiate(op, [*pairs], points)
        return [_filled(op, 0.0, x) if dx is None else dx for x, dx in zip(points, adjoints, strict=True)]

    return rebuild(model, rewrite)


def _filled(op: Builder, number: float, like: ir.Value) -> ir.Value:
    filled: ir.Value = op.Expand(op.const(number, like.dtype), list(static_dims(like)))
    return filled
