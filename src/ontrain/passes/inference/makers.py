"""What makes a value, and the numbers among a node's operands: what patterns of a file's formulas ask."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ontrain.operators import operand_of
from ontrain.passes.inference.weights import Weights

__all__ = ["axes_of", "is_over_last_axis", "is_private", "maker_of", "number_of", "permutation_of"]


def maker_of(value: ir.Value | None, op_type: str) -> ir.Node | None:
    """Return the node that makes a value if it is an operator of the standard of this type."""
    node = value.producer() if value is not None else None
    return node if node is not None and not node.domain and node.op_type == op_type else None


def number_of(value: ir.Value | None, weights: Weights) -> float | None:
    """Return the one number that a constant or a weight holds."""
    if value is None or not weights.holds(value):
        return None
    array = weights.array(value)
    return float(array.reshape(())) if array.size == 1 else None


def axes_of(node: ir.Node) -> list[int] | None:
    """Return the axes that a node is told by its second operand; None where that is absent or computed."""
    value = operand_of(node, 1)
    if value is None or value.const_value is None:
        return None
    return [int(axis) for axis in np.asarray(value.const_value.numpy()).reshape(-1)]


def permutation_of(node: ir.Node) -> list[int] | None:
    """Return the order in which a Transpose lays the axes; None where it is the reverse of a rank that is unknown."""
    perm, x = node.attributes.get("perm"), node.inputs[0]
    if perm is not None:
        return list(perm.as_ints())
    return None if x is None or x.shape is None else list(range(len(x.shape)))[::-1]


def is_over_last_axis(mean: ir.Node) -> bool:
    """Whether a mean is over the last axis, which it keeps."""
    x, axes = mean.inputs[0], axes_of(mean)
    rank = len(x.shape) if x is not None and x.shape is not None else None
    return mean.attributes.get_int("keepdims", 1) == 1 and axes in ([-1], None if rank is None else [rank - 1])


def is_private(nodes: list[ir.Node], last: ir.Node) -> bool:
    """Whether nobody but a formula, of which `last` is the end, reads what its other nodes make."""
    inside = {*nodes, last}
    values = [node.outputs[0] for node in nodes]
    return not any(v.is_graph_output() or any(use.node not in inside for use in v.uses()) for v in values)
