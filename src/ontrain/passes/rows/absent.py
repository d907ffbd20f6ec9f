"""Rows of zeros that a gradient puts back: what is multiplied with them is left out."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ontrain.graph import DOMAIN, Builder, static_dims
from ontrain.operators import record_of
from ontrain.passes.infra import RewritePass

__all__ = ["MultiplyPresentRows"]


class MultiplyPresentRows(RewritePass):
    """Multiply the rows of a gradient that are there, and put the others' zeros back afterwards.

        MatMul(UnpackRows(g, i), W)            →   UnpackRows(MatMul(g, W), i)
        Gemm(UnpackRows(g, i), X, transA=1)    →   Gemm(g, PackRows(X, i), transA=1)
        ReduceSum(UnpackRows(g, i), axis 0)    →   ReduceSum(g, axis 0)

    Equal because zeros add nothing. It is for losses whose scores somebody reads of all rows: they are computed whole
    going forward, and differentiated where there is a label. Left alone: products of batches, and sums with a Gemm's
    third operand.
    """

    def has_work(self, graph: ir.Graph) -> bool:
        """Whether there are packed rows."""
        return any(node.domain == DOMAIN and node.op_type == "UnpackRows" for node in graph)

    def rewrite(self, op: Builder, node: ir.Node, inputs: list[ir.Value | None]) -> list[ir.Value | None] | None:
        """Move one operator to the packed rows."""
        if node.domain:
            return None
        if node.op_type == "Reshape":
            return _as_it_is(node, inputs)
        if node.op_type == "ReduceSum":
            return _sum(op, node, inputs)
        if record_of(node).product and len([v for v in inputs if v is not None]) == 2:
            return _product(op, node, inputs)
        return None


def _unpacked(value: ir.Value | None) -> tuple[ir.Value, ir.Value, int] | None:
    """Packed rows of a matrix, their places, and how many rows there are with the zeros between."""
    node = value.producer() if value is not None else None
    if node is None or node.domain != DOMAIN or node.op_type != "UnpackRows":
        return None
    rows, places = node.inputs
    if rows is None or places is None or len(static_dims(rows)) != 2:
        return None
    return rows, places, node.attributes["rows"].as_int()


def _as_it_is(node: ir.Node, inputs: Sequence[ir.Value | None]) -> list[ir.Value | None] | None:
    """A reshape that changes nothing stands between a gradient and its products."""
    x = inputs[0]
    same = _unpacked(x) is not None and x is not None and static_dims(x) == static_dims(node.outputs[0])
    return [x] if same else None


def _sum(op: Builder, node: ir.Node, inputs: Sequence[ir.Value | None]) -> list[ir.Value | None] | None:
    source, axes = _unpacked(inputs[0]), inputs[1] if len(inputs) > 1 else None
    if source is None or axes is None or axes.const_value is None or 0 not in axes.const_value.numpy():
        return None
    return [op.ReduceSum(source[0], axes, keepdims=node.attributes.get_int("keepdims", 1))]


def _product(op: Builder, node: ir.Node, inputs: Sequence[ir.Value | None]) -> list[ir.Value | None] | None:
    left, right = inputs[:2]
    if left is None or right is None or len(static_dims(left)) != 2 or len(static_dims(right)) != 2:
        return None
    a, b = (node.attributes.get_int(name, 0) for name in ("transA", "transB"))
    attributes = list(node.attributes.values())

    def multiplied(x: ir.Value, y: ir.Value) -> ir.Value:
        output = op.add(ir.Node("", node.op_type, [x, y], attributes))
        assert isinstance(output, ir.Value)
        return output

    of_left, of_right = _unpacked(left), _unpacked(right)
    if of_left is not None and not a:
        rows, places, count = of_left
        return [op.composite("UnpackRows", multiplied(rows, right), places, rows=count)]
    if of_left is not None and not b:
        return [multiplied(of_left[0], op.composite("PackRows", right, of_left[1]))]
    if of_right is not None and a and not b:
        return [multiplied(op.composite("PackRows", left, of_right[1]), of_right[0])]
    return None
