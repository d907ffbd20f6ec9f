"""Attributes against the sizes of operands, and results that would have less than no places."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from ontrain.errors import GraphError
from ontrain.graph.source import describe, source_of
from ontrain.operators import record_of

__all__ = ["check_misfits", "check_result"]


def check_misfits(node: ir.Node) -> None:
    """Check what an operator's attributes say of its operands, where all sizes are numbers.

    Raises:
        GraphError: an attribute contradicts them.
    """
    misfit = record_of(node).misfit
    if misfit is None:
        return
    shapes: list[tuple[int, ...]] = []
    for value in node.inputs:
        stated = () if value is None else value.shape
        dims = tuple(dim for dim in stated or () if isinstance(dim, int))
        if stated is None or len(dims) < len(stated):
            return
        shapes.append(dims)
    if reason := misfit(node, shapes):
        raise GraphError(
            f"the attributes of {node.op_type} do not fit its inputs",
            node=describe(node),
            source=source_of(node),
            reason=reason,
        )


def check_result(node: ir.Node, dims: Iterable[object]) -> None:
    """Check a shape that was inferred: windows wider than what they slide over leave less than nothing.

    Raises:
        GraphError: a dimension is below zero.
    """
    for axis, dim in enumerate(dims):
        if isinstance(dim, int) and dim < 0:
            raise GraphError(
                f"the result of {node.op_type} would have the size {dim} along dimension {axis}",
                node=describe(node),
                source=source_of(node),
                reason="its kernel_shape and dilations reach beyond what they slide over",
            )
