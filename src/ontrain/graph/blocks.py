"""Sizes that blocks have to divide: inference rounds the quotient down, and kernels then meet other sizes."""

from __future__ import annotations

import onnx_ir as ir

from ontrain.errors import GraphError
from ontrain.graph.source import describe, source_of
from ontrain.operators import record_of

__all__ = ["check_blocks"]


def check_blocks(node: ir.Node) -> None:
    """Check that the blocks of DepthToSpace and SpaceToDepth divide what they cut up.

    Raises:
        GraphError: something would be left over.
    """
    divides = record_of(node).divides
    if divides is None or "blocksize" not in node.attributes:
        return
    x, size = node.inputs[0], node.attributes["blocksize"].as_int()
    if x is None or x.shape is None or len(x.shape) != 4 or size < 1:
        return
    for axis, part in divides(size):
        dim = x.shape[axis]
        if isinstance(dim, int) and dim % part:
            raise GraphError(
                f"{node.op_type} cannot cut dimension {axis}, of size {dim}, into parts of {part}",
                node=describe(node),
                source=source_of(node),
                reason=f"its blocksize is {size}",
            )
