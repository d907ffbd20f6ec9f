"""Identities that are more to whoever differentiates: a value that is watched, a gradient of the user's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import onnx_ir as ir

from ontrain.functions.registry import composite
from ontrain.graph import DOMAIN, Builder, all_nodes, rebuild, register_inference, type_and_shape
from ontrain.operators import Value

__all__ = ["DERIVATIVE", "VJP", "vjp_operands", "without_own_backwards"]

T = TypeVar("T")
DERIVATIVE = "Derivative"
"""(y, x…) to the derivative of the sum of y by each x. Only what differentiates a graph knows what computes it."""
VJP = "VectorJacobianProduct"
"""(y…, dy…, x…) to the derivative of the sum of all y·dy by each x, as many y as `count` says; dy depends on no x."""
register_inference(VJP, lambda node: [type_and_shape(x) for x in node.inputs[2 * _count(node) :] if x is not None])
register_inference(DERIVATIVE, lambda node: [type_and_shape(x) for x in node.inputs[1:] if x is not None])


def _count(node: ir.Node) -> int:
    return node.attributes["count"].as_int()


def vjp_operands(node: ir.Node, inputs: Sequence[T]) -> tuple[list[tuple[T, T]], Sequence[T]]:
    """Return the pairs of value and adjoint of a `VJP`, and what they are differentiated by."""
    count = _count(node)
    return list(zip(inputs[:count], inputs[count : 2 * count], strict=True)), inputs[2 * count :]


@composite("Inspect", like=[0])
def inspect(op: Builder, x: Value, *, name: str = "") -> Value:
    """x itself. No pass looks through it: who reads x behind it reads this value, and its adjoint is whole."""
    return op.Identity(x)


@composite("Adjoint", like=[0])
def adjoint(op: Builder, y: Value) -> Value:
    """Where the adjoint of y goes in the backward of a function of the user's own; `Through` names it.

    Its value is that of y, and nothing reads what is computed from it.
    """
    return op.Identity(y)


def _results(inputs: Sequence[Value], *, results: int) -> list[tuple[ir.DataType, ir.Shape]]:
    return [(y.dtype, y.shape) for y in inputs[:results]]


@composite("Through", infer=_results)
def through(op: Builder, *values: Value, results: int = 1) -> list[Value]:
    """The first `results` of (y…, adjoint…, x…, gradient…), as many adjoints as y and gradients as x, as they are.

    A torch.autograd.Function with a backward of its own: the gradients, computed from the `Adjoint`s, are what flows
    back to each x when the real adjoints of the results stand in their places. Nothing flows back to the others.
    """
    return [op.Identity(y) for y in values[:results]]


def without_own_backwards(model: ir.Model) -> ir.Model:
    """Return the model without the users' backwards in it: for a graph that has been differentiated, or will not be."""

    def rewrite(op: Builder, node: ir.Node, inputs: list[ir.Value | None]) -> list[ir.Value | None] | None:
        return inputs[: len(node.outputs)] if (node.domain, node.op_type) == (DOMAIN, "Through") else None

    if not any(node.op_type == "Through" and node.domain == DOMAIN for node in all_nodes(model.graph)):
        return model
    return rebuild(model, rewrite)
