"""Derivatives that a graph itself asks for."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ontrain.autodiff.backward import ADJOINT
from ontrain.autodiff.driver import differentiate
from ontrain.functions import DERIVATIVE, VJP, vjp_operands
from ontrain.graph import DOMAIN, Builder, Role, dims, rebuild, set_role, static_dims

__all__ = ["asks_for_derivatives", "gradient_model", "is_derivative", "with_derivatives"]


def is_derivative(node: ir.Node) -> bool:
    """Return whether a node stands for a derivative, which is spelled out before a provider sees the graph."""
    return node.domain == DOMAIN and node.op_type in (DERIVATIVE, VJP)


def asks_for_derivatives(graph: ir.Graph) -> bool:
    """Return whether a node of the graph is a derivative of a value."""
    return any(is_derivative(node) for node in graph)


def gradient_model(model: ir.Model, outputs: Sequence[str], wrt: Sequence[str]) -> ir.Model:
    """Return a new model of gradients alone, which can be differentiated in turn.

    For each of `outputs` there is a new input `{name}.adjoint` behind the others, of its shape and dtype. The outputs
    are `{name}.grad` for each of `wrt`; no other is left, updates of buffers neither.

    Args:
        model: captured graph; its shapes may be symbolic. Left untouched.
        outputs: names of float outputs.
        wrt: names of inputs, parameters among them, each of which an output depends on.
    """
    gradients = rebuild(model)
    graph, op = gradients.graph, Builder(gradients.graph)
    inputs = {v.name: v for v in graph.inputs}
    results = {v.name: v for v in graph.outputs}
    ys = [results[name] for name in outputs]
    adjoints = [
        set_role(ir.Value(name=op.fresh(f"{y.name}{ADJOINT}"), shape=ir.Shape(dims(y)), type=y.type), Role.INPUT)
        for y in ys
    ]
    graph.inputs.extend(adjoints)
    xs = [inputs[name] for name in wrt]
    node = ir.node(VJP, [*ys, *adjoints, *xs], {"count": len(ys)}, domain=DOMAIN, num_outputs=len(xs))
    graph.append(node)
    for name, x, gradient in zip(wrt, xs, node.outputs, strict=True):
        gradient.name, gradient.type, gradient.shape = op.fresh(f"{name}.grad"), x.type, x.shape
    graph.outputs[:] = node.outputs
    return rebuild(gradients)


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
