"""Which dimensions of a node's operands must be the same number."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ontrain.operators import broadcast, record_of, static_dims

__all__ = ["Pair", "agreeing_dims"]

Pair = tuple[int, int]


def agreeing_dims(node: ir.Node, inputs: Sequence[ir.Value | None]) -> list[Pair]:
    """Return the pairs of dimensions that must agree for an operator to run, those that do not agree only.

    Args:
        node: says the operator and its attributes.
        inputs: operands of concrete shapes.
    """
    record = record_of(node)
    rule = record.agreeing or (broadcast if record.elementwise else None)
    if rule is None:
        return []
    shapes = [() if value is None else static_dims(value) for value in inputs]
    return [pair for pair in rule(node, shapes) if pair[0] != pair[1]]
