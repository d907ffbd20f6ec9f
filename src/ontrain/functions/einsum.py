"""The shape of an einsum: an axis of length one is repeated for the operands that have more of it."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ontrain.graph import TypeAndShape, register_inference
from ontrain.operators import subscripts

__all__ = ["result_shape"]

Dim = int | ir.SymbolicDim


def _einsum_types(node: ir.Node) -> Sequence[TypeAndShape | None]:
    """onnx's own rule gives an axis the length that the first operand has."""
    operands = [value for value in node.inputs if value is not None]
    shapes = [list(value.shape) for value in operands if value.shape is not None]
    dtype = operands[0].dtype
    if dtype is None or len(shapes) < len(operands):
        return [None]
    return [(dtype, ir.Shape(result_shape(node.attributes["equation"].as_string(), shapes)))]


def result_shape(equation: str, shapes: Sequence[Sequence[Dim]]) -> list[Dim]:
    """Return the shape of an einsum of operands of these shapes.

    Raises:
        ValueError: a letter stands for axes of two lengths.
    """
    terms, result = subscripts(equation, [len(shape) for shape in shapes])
    lengths: dict[str, Dim] = {}
    for term, shape in zip(terms, shapes, strict=True):
        for letter, length in zip(term, shape, strict=True):
            lengths[letter] = _longer(letter, lengths.get(letter, 1), length)
    return [lengths[letter] for letter in result]


def _longer(letter: str, a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int) and 1 not in (a, b) and a != b:
        raise ValueError(f"{letter!r} stands for axes of {a} and {b}")
    if a == 1 or (isinstance(b, int) and b != 1 and not isinstance(a, int)):
        return b
    return a


register_inference("Einsum", _einsum_types, "")
