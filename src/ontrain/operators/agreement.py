"""Which dimensions broadcasting takes to be equal, and a node's operands and their sizes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import onnx_ir as ir

from ontrain.operators.shapes import static_dims

__all__ = ["broadcast", "operand_of", "shape_of", "size_of"]


def broadcast(node: ir.Node, shapes: Sequence[tuple[int, ...]]) -> Iterator[tuple[int, int]]:
    """Dimensions from the last one on: each two of them are equal, or one of them is 1."""
    for number, first in enumerate(shapes):
        for second in shapes[number + 1 :]:
            for a, b in zip(first[::-1], second[::-1], strict=False):
                if 1 not in (a, b):
                    yield a, b


def operand_of(node: ir.Node, index: int) -> ir.Value | None:
    """Return the operand at a place, None where it is left out."""
    return node.inputs[index] if len(node.inputs) > index else None


def shape_of(node: ir.Node, index: int) -> tuple[int, ...]:
    """Return the sizes of an operand that is there."""
    value = node.inputs[index]
    assert value is not None
    return static_dims(value)


def size_of(value: ir.Value) -> int:
    """Return the number of elements, none where it is not known."""
    return math.prod(static_dims(value)) if value.shape is not None and value.shape.is_static() else 0
