"""Axes against ranks, before onnx's own inference: it indexes shapes by some of them without looking."""

from __future__ import annotations

import onnx_ir as ir

from ontrain.errors import GraphError
from ontrain.graph.source import describe, source_of
from ontrain.operators import Axis, record_of

__all__ = ["check_axes"]


def check_axes(node: ir.Node) -> None:
    """Check the attributes `axis` and `perm` of a standard operator against the rank of its first input.

    Raises:
        GraphError: an axis lies outside the shape, or a permutation is none.
    """
    axis, perm = node.attributes.get("axis"), node.attributes.get("perm")
    x = node.inputs[0] if node.inputs else None
    if (axis is None and perm is None) or x is None or x.shape is None:
        return
    rank = len(x.shape)
    taken = record_of(node).axis
    if axis is not None and axis.type == ir.AttributeType.INT and taken is not Axis.ANY:
        more = taken is Axis.ONE_MORE
        if not -rank - more <= axis.as_int() <= rank - 1 + more and not (rank == 0 and axis.as_int() in (-1, 0)):
            raise GraphError(
                f"{node.op_type} has the axis {axis.as_int()} for an input of {rank} dimensions",
                node=describe(node),
                source=source_of(node),
            )
    if perm is not None and perm.type == ir.AttributeType.INTS and sorted(perm.as_ints()) != list(range(rank)):
        raise GraphError(
            f"{node.op_type} has the permutation {list(perm.as_ints())} for an input of {rank} dimensions",
            node=describe(node),
            source=source_of(node),
        )
